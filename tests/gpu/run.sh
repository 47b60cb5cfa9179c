#!/bin/sh
# Runs the tests marked gpu on a machine with a GPU and prints what docs/GPU_TESTS.md records. Arguments go to pytest.
# Kernels are compiled first, on all cores, so that the tests do not compile them one by one.
set -u
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export PYTHONPATH=${PYTHONPATH:-.} PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
arch=$($python -c 'import torch; a, b = torch.cuda.get_device_capability(); print(f"sm_{a}{b}" + "a" * (a >= 9))') || exit
$python tests/gpu/prepare.py "$arch"
$python -c 'import torch, platform
print("GPU:", torch.cuda.get_device_name(0), "| torch", torch.__version__, "| kernel", platform.release())'
$python -m pytest -m gpu tests/prnn_ext tests/gpu tests/models -q -p no:cacheprovider "$@"
