#!/bin/sh
# Downloads what a machine with torch, nvcc and no network lacks for tests/gpu/stages.py: .whl for all stages, .whl-pages
# (32 MiB) for those that write pages. Both are ignored by git. For Python 3.12 on x86-64.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
get() {
  folder=$1
  shift
  $python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --dest "$folder" "$@"
}
get .whl altair==6.3.0 beartype==0.23.1 cffi==2.1.1 docstring_parser==0.18.0 einops==0.8.2 flashrnn==1.0.8 \
  importlib_resources==7.1.0 jsonargparse==4.53.0 jsonschema==4.26.0 jsonschema_specifications==2025.9.1 \
  narwhals==2.29.0 ninja==1.13.2 omegaconf==2.4.0 pycparser==3.12 rapidfuzz==3.14.6 referencing==0.37.0 \
  rich==15.0.0 rpds_py==2026.9.1 soundfile==0.14.0 typeshed_client==2.15.0
get .whl-pages vl_convert_python==1.9.0.post1
du -sh .whl .whl-pages
