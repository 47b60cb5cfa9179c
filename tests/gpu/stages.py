"""Everything that wants a GPU, stage by stage: what each runs, for how long at most, and what became of it.

    python3 tests/gpu/stages.py --list
    python3 tests/gpu/stages.py tests kernel          # in this order; a failed stage does not stop the next
    python3 tests/gpu/stages.py --dry-run whole_step  # without a GPU: small sizes, to find a mistyped option

Kernels that were compiled beforehand and carried along in ``.gpu`` (docs/GPU_TESTS.md) are found there, so that the
GPU's time is not spent compiling; the last line says how many more were needed.
Wheels in ``.whl`` and ``.whl-pages`` are installed first, into a folder of their own. What a stage printed and wrote is
packed into ``$OUT/stages.tgz`` (default: ``runs/gpu``) as soon as it ends, so that who is cut off loses one stage;
a table comes last. Order and cost of all: docs/GPU_TESTS.md.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = "python3 -u"
EXPERIMENT = f"{PYTHON} -m experiments"


@dataclass(frozen=True)
class Stage:
    """``commands`` run one after the other, each though one before failed; ``{out}`` is the stage's folder.

    ``seconds`` is the limit of all together; ``small`` runs instead without a GPU.
    """

    seconds: int
    commands: list[str]
    small: list[str] = field(default_factory=list)


def throughput(folder: str, *options: str) -> str:
    return " ".join([f"{EXPERIMENT} throughput --output {{out}}/{folder}", *options])


MEND = f"{PYTHON} -m experiments.throughput.flashrnn_mend {{scratch}}/mended"
BUILD_FLASHRNN = (
    "PYTHONPATH={scratch}/mended:$PYTHONPATH "
    + throughput("flashrnn_{batch}", "--batch-sizes {batch} --backends persistent,flashrnn --rounds 1")
)  # fmt: skip
SANITIZER = (
    "PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 1 --tool {tool} python3 tests/gpu/sanitize.py"
)
BENCH = f"{PYTHON} tests/gpu/kernel_bench.py"
TORCHRUN = "python3 -m torch.distributed.run --standalone --nproc-per-node 2"

STAGES = {
    "tests": Stage(
        240,
        ["tests/gpu/run.sh -rfE --timeout 120"],
        ["python3 -m pytest -m gpu tests/prnn_ext tests/gpu tests/models --collect-only -q -p no:cacheprovider"],
    ),
    "tests_models": Stage(  # those of `tests` that compile next to nothing
        120,
        [
            "CUBLAS_WORKSPACE_CONFIG=:4096:8 "
            "python3 -m pytest -m gpu tests/gpu/test_deep_stack.py tests/models -q -rfE -p no:cacheprovider"
        ],
        ["python3 -m pytest -m gpu tests/gpu/test_deep_stack.py tests/models --collect-only -q -p no:cacheprovider"],
    ),
    "host": Stage(40, [f"{PYTHON} tests/gpu/host_time.py"], [f"{PYTHON} tests/gpu/host_time.py"]),
    "kernel": Stage(
        240,
        [
            f"BUILD=1 {BENCH} required waits sizes batches",
            f"PRNN_RESULT={{out}}/kernel.json {BENCH} required waits sizes batches required",
        ],
        [f"BUILD=1 BUILD_FIRST=2 {BENCH} required waits sizes batches"],
    ),
    "rivals": Stage(
        240,
        [
            f"PRNN_RESULT={{out}}/l2_probe.json {PYTHON} tests/gpu/l2_probe.py",
            f"PRNN_RESULT={{out}}/trace.json {PYTHON} tests/gpu/trace.py",
            f"BUILD=1 {BENCH} sides rivals",
            f"PRNN_PROBE={{out}}/l2_probe.json PRNN_RESULT={{out}}/rivals.json {BENCH} sides rivals",
        ],
        [f"{PYTHON} tests/gpu/l2_probe.py", f"BUILD=1 BUILD_FIRST=2 {BENCH} sides rivals"],
    ),
    "throughput": Stage(
        420,
        [
            MEND,
            # Two builds side by side, about 90 s of nvcc each.
            f"({BUILD_FLASHRNN.replace('{batch}', '4')} & {BUILD_FLASHRNN.replace('{batch}', '16')} & wait)",
            "PYTHONPATH={scratch}/mended:$PYTHONPATH "
            + throughput("batches", "--batch-sizes 1,2,4,6,8,12,16,24,32,48,64,128"),
            throughput("sizes", "--hidden-sizes 512,1760,2560 --batch-sizes 4,64 --backends persistent,cudnn,gemm"),
            throughput("dtypes", "--dtypes float16,float32 --batch-sizes 4,64 --backends persistent,cudnn,gemm"),
        ],
        [
            throughput(
                "batches",
                "--hidden-sizes 16 --batch-sizes 1,4 --time-steps 5 --dtypes bfloat16,float32 --rounds 1 --device cpu",
            )
        ],
    ),
    "first_use": Stage(120, [f"PRNN_RESULT={{out}}/first_use.json {PYTHON} tests/gpu/first_use.py"]),
    "sanitize": Stage(
        400, [SANITIZER.replace("{tool}", "memcheck"), SANITIZER.replace("{tool}", "racecheck")]
    ),
    "an4": Stage(
        420,
        [f"{EXPERIMENT} fit --config experiments/configs/an4_gpu.yaml --corpora corpora --output {{out}}/run"],
        [
            f"{EXPERIMENT} fit --config experiments/configs/an4_gpu.yaml --corpora ../shared/corpora "
            "--output {out}/run --trainer.accelerator cpu --trainer.precision 32 --model.backend auto "
            "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 1 "
            "--trainer.limit_test_batches 1 --model.num_layers 2 --model.hidden_size 16"
        ],
    ),
    "whole_step": Stage(
        420,
        [f"{EXPERIMENT} whole-step --config experiments/configs/studies/deep_step.yaml --output {{out}}"],
        [f"{EXPERIMENT} whole-step --depths 2 --hidden-size 16 --frames 40 --rounds 1 --device cpu --output {{out}}"],
    ),
    "memory": Stage(
        420,
        [f"{EXPERIMENT} memory --output {{out}}"],
        [f"{EXPERIMENT} memory --depths 2 --hidden-sizes 16 --frames 40 --device cpu --output {{out}}"],
    ),
    "two_gpus": Stage(
        300,
        [
            f"PRNN_RESULT={{out}}/nccl.json {TORCHRUN} tests/gpu/nccl_beside.py",
            f"{EXPERIMENT} scaling --config experiments/configs/studies/scaling.yaml --devices 1,2 --output {{out}}",
        ],
        [
            f"{EXPERIMENT} scaling --devices 1 --batch-sizes 1,2 --num-layers 1 --hidden-size 16 --audio-seconds 0.5 "
            "--rounds 1 --accelerator cpu --output {out}"
        ],
    ),
}  # fmt: skip


def environment() -> dict[str, str]:
    """This Python is the stages' ``python3``, and this checkout theirs."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/local/cuda/bin"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def install(scratch: Path) -> dict[str, str]:
    """The environment of all stages on a GPU; carried wheels go into a folder that comes first."""
    env = {**environment(), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    env["TORCH_EXTENSIONS_DIR"] = str(scratch / "extensions")
    env["TORCH_CUDA_ARCH_LIST"] = "9.0"  # FlashRNN's build; ours asks the device
    kernels = scratch / "kernels"
    env["PRNN_EXT_CACHE"] = str(kernels)
    kernels.mkdir(exist_ok=True)
    for path in (ROOT / ".gpu").glob("*.bin"):
        shutil.copy(path, kernels)
    if wheels := [str(path) for folder in (".whl", ".whl-pages") for path in sorted((ROOT / folder).glob("*.whl"))]:
        site = scratch / "site"
        options = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade", "--quiet", "--target"]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, str(site), *wheels], check=True)
        env["PYTHONPATH"] = f"{site}:{ROOT}"
        env["PATH"] = f"{env['PATH']}:{site / 'bin'}"
    return env


def run(name: str, commands: list[str], out: Path, scratch: Path, env: dict[str, str]) -> tuple[list[int], float]:
    """Exit codes of the commands, 124 for one that outran the stage, and seconds of all."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    started, codes = time.monotonic(), []
    with (out / f"{name}.log").open("w") as log:
        for command in commands:
            text = command.replace("{out}", str(folder)).replace("{scratch}", str(scratch))
            print(f"$ {text}", file=log, flush=True)
            left = STAGES[name].seconds - (time.monotonic() - started)
            process = subprocess.Popen(
                ["bash", "-c", text], cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                codes.append(process.wait(max(left, 1)))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                codes.append(124)
    return codes, time.monotonic() - started


def pack(out: Path, target: Path) -> None:
    """All logs and results in one file, put in place when whole."""
    part = target.with_suffix(".part")
    with tarfile.open(part, "w:gz") as archive:
        archive.add(out, arcname="stages", filter=lambda info: None if "/checkpoints" in info.name else info)
    part.replace(target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", choices=[[], *STAGES], metavar="STAGE", help="; ".join(STAGES))
    parser.add_argument("--list", action="store_true", help="the stages, their limits and commands")
    parser.add_argument("--dry-run", action="store_true", help="small, without a GPU, where a stage has such a form")
    options = parser.parse_args()
    if options.list or not options.stages:
        for name, stage in STAGES.items():
            print(f"{name}: {stage.seconds} s", *stage.commands, sep="\n    ")
        return 0
    target = Path(os.environ.get("OUT", ROOT / "runs/gpu"))
    target.mkdir(parents=True, exist_ok=True)
    out, scratch = Path(tempfile.mkdtemp(prefix="stages-")), Path(tempfile.gettempdir()) / "prnn-stages"
    scratch.mkdir(exist_ok=True)
    env = environment() if options.dry_run else install(scratch)
    carried = sum(1 for _ in scratch.glob("kernels/*.bin"))
    table = []
    for name in options.stages:
        commands = STAGES[name].small if options.dry_run else STAGES[name].commands
        codes, seconds = run(name, commands, out, scratch, env)
        table.append((name, codes, seconds))
        pack(out, target / "stages.tgz")
        shown = (out / f"{name}.log").read_text(errors="replace").splitlines()
        print(f"===== {name}: exit {codes} after {seconds:.0f} s", *shown[-25:], sep="\n", flush=True)
    shutil.rmtree(out)
    print("\nstage         exit codes          seconds   limit")
    for name, codes, seconds in table:
        print(f"{name:13s} {codes!s:18s} {seconds:8.0f} {STAGES[name].seconds:7d}")
    print(f"kernels: {carried} there before, {sum(1 for _ in scratch.glob('kernels/*.bin')) - carried} compiled since")
    return int(any(code for _, codes, _ in table for code in codes))


if __name__ == "__main__":
    sys.exit(main())
