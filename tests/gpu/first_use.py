"""How long the first use of a new size takes, with an empty cache and with a warm one, each in a fresh process.

    PYTHONPATH=. python tests/gpu/first_use.py

A process makes a CUDA context and multiplies once in torch; then `prnn_ext.rnn` runs forward and backward for the first
time: its own imports, planning, NVRTC or the cache, loading, launching, waiting for the result. Required: 10 s cold,
0.2 s warm.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYERS = ((1152, 4, "bfloat16"), (1152, 4, "float32"), (2560, 64, "bfloat16"))
LIMITS = {"cold": 10.0, "warm": 0.2}


def child(hidden: int, batch: int, dtype: str) -> None:
    import torch

    x = torch.randn(8, batch, hidden, device="cuda").to(getattr(torch, dtype)).requires_grad_()
    weight = (torch.randn(hidden, hidden, device="cuda") / hidden).to(x.dtype).requires_grad_()
    (x[0] @ weight).sum().backward()
    torch.cuda.synchronize()
    started = time.perf_counter()
    import prnn_ext

    output, _ = prnn_ext.rnn(x, weight, backend="persistent")
    output.sum().backward()
    torch.cuda.synchronize()
    print(time.perf_counter() - started)


def main() -> int:
    rows, missed = [], 0
    for layer in LAYERS:
        with tempfile.TemporaryDirectory() as cache:
            for state in ("cold", "warm", "warm"):
                command = [sys.executable, __file__, *map(str, layer)]
                env = {**os.environ, "PRNN_EXT_CACHE": cache}
                run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
                if run.returncode:
                    print(run.stderr, file=sys.stderr)
                    return 1
                seconds = float(run.stdout)
                missed += seconds > LIMITS[state]
                rows.append({"layer": layer, "cache": state, "seconds": seconds})
                print(f"{seconds:7.3f} s (allowed {LIMITS[state]}) {state} {layer}", flush=True)
    if path := os.environ.get("PRNN_RESULT"):
        Path(path).write_text(json.dumps(rows, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(main())
