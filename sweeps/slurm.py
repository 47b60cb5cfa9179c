"""A sweep as a SLURM job array: one task of the array a point, one run a job, on as many nodes and GPUs as it asks for.

Written beneath the sweep's folder: slurm/points.txt (a command a line) and slurm/array.sh. A job that is preempted or
runs out of time is queued again (SIGTERM two minutes before, a checkpoint, the same run folder) and goes on from there;
one that has finished is found done and ends at once, so the whole array may be submitted again.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from experiments.cli import EXIT_STOPPED
from experiments.run.result import write_atomically
from sweeps.planning import Planned

SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={gpus}
#SBATCH --gpus-per-node={gpus}
#SBATCH --time={time}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
#SBATCH --output={folder}/%a.txt
{more}set -euo pipefail
cd {here}
line=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {folder}/points.txt)
# Lightning reads ranks and addresses from SLURM; two jobs on one node must not share a port.
export MASTER_PORT=$((20000 + (SLURM_JOB_ID + SLURM_ARRAY_TASK_ID) % 20000))
code=0
eval "srun $line" || code=$?
# {stopped}: stopped by a signal, with a checkpoint to go on from. SLURM itself queues again only what it preempts.
if [ "$code" -eq {stopped} ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""


def write_array(
    root: Path, name: str, planned: Sequence[Planned], *, nodes: int, gpus: int, time: str, more: Sequence[str] = ()
) -> Path:
    """Write the array's two files and return the script. `more` are further options of sbatch, as partition=gpu.

    Raises ValueError for sizes below 1.
    """
    if nodes < 1 or gpus < 1:
        raise ValueError(f"--nodes {nodes} --gpus {gpus}: a job has at least one of each.")
    folder = (root / "slurm").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    devices = [f"--trainer.num_nodes={nodes}", f"--trainer.devices={gpus}"]
    lines = [shlex.join([*one.run(root.resolve()).command, *devices]) for one in planned]
    write_atomically(folder / "points.txt", "\n".join(lines) + "\n")
    script = SCRIPT.format(
        name="".join(letter if letter.isalnum() else "-" for letter in name),
        last=len(planned) - 1,
        nodes=nodes,
        gpus=gpus,
        time=time,
        folder=shlex.quote(str(folder)),
        here=shlex.quote(str(Path.cwd())),
        stopped=EXIT_STOPPED,
        more="".join(f"#SBATCH --{option}\n" for option in more),
    )
    write_atomically(folder / "array.sh", script)
    return folder / "array.sh"


def submit(script: Path) -> str:
    """Hand the script to sbatch; what it says. Raises ValueError where there is no SLURM, or it refuses."""
    if shutil.which("sbatch") is None:
        raise ValueError(f"there is no sbatch here; run `sbatch {script}` where SLURM is.")
    done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"sbatch refused {script}: {' '.join(done.stderr.split())}")
    return done.stdout.strip()
