"""FlashRNN 1.0.8 as a rival on CUDA 13: a copy of the installed package that builds there.

As installed it does not: CUDA 13 dropped eight device properties that its `gpu_info.cc` copies and its kernels never
read (they become 0), and it waits up to ten seconds at random before each build (left out). Nothing else is changed,
and nothing of the package is kept in this repository.

    pip install flashrnn==1.0.8 einops ninja
    python -m experiments.throughput.flashrnn_mend FOLDER
    PYTHONPATH=FOLDER python -m experiments throughput --batch-sizes 4,16

It compiles by nvcc when first called, about 90 s a shape, for the size and mini-batch at hand.
"""

import argparse
import importlib.util
import re
import shutil
from importlib import metadata
from pathlib import Path

VERSION = "1.0.8"
DROPPED = (
    "clockRate",
    "deviceOverlap",
    "kernelExecTimeoutEnabled",
    "computeMode",
    "maxTexture1DLinear",
    "memoryClockRate",
    "singleToDoublePrecisionPerfRatio",
    "cooperativeMultiDeviceLaunch",
)
MENDS = {
    "flashrnn/gpu_info/gpu_info.cc": [(rf"\bprop\.{name}\b", "0") for name in DROPPED],
    "flashrnn/cuda_init.py": [(r"(?m)^ *time\.sleep\(random\.random\(\) \* 10\)\n", "")],
}


def mend(package: Path, target: Path) -> Path:
    """Copy ``package`` (a folder named flashrnn) into ``target`` and mend the copy; returns the copy.

    Raises ``ValueError`` where a passage to mend is not found exactly once: then it is another version.
    """
    copy = target / "flashrnn"
    shutil.copytree(package, copy, dirs_exist_ok=True)
    for name, changes in MENDS.items():
        path = copy / name
        text = path.read_text(encoding="utf-8")
        for pattern, replacement in changes:
            text, found = re.subn(pattern, replacement, text)
            if found != 1:
                raise ValueError(f"{name} has {pattern!r} {found} times and not once; install flashrnn=={VERSION}.")
        path.write_text(text, encoding="utf-8")
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the mended copy goes; put it first on PYTHONPATH")
    folder = parser.parse_args().folder
    found = importlib.util.find_spec("flashrnn")
    if found is None or found.origin is None:
        parser.error(f"flashrnn is not installed; pip install flashrnn=={VERSION} einops ninja")
    if (version := metadata.version("flashrnn")) != VERSION:
        parser.error(f"flashrnn is {version}; pip install flashrnn=={VERSION}, for which the mends are written")
    print(f"mended copy in {mend(Path(found.origin).parent, folder)}; put {folder} first on PYTHONPATH")


if __name__ == "__main__":
    main()
