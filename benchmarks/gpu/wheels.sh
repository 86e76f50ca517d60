#!/usr/bin/env bash
# Collect what a machine without a network lacks for `dovetail doctor`, `dovetail measure` and the
# acceptance suite.
#
#     benchmarks/gpu/wheels.sh PYTHON_VERSION PLATFORM...
#     benchmarks/gpu/wheels.sh 3.12 manylinux_2_28_x86_64 manylinux_2_17_x86_64
#
# Writes wheels/ next to this file: our own wheel, and the few packages that these and the service
# of a batch import. PyTorch and numpy are not among them: they come with the workloads'
# environment. OR-Tools, Numba and the libraries that fit models are not either.
# PYTHON names the Python that downloads and builds (default: python3, with pip). If it also has
# Dovetail and the extra isolation-tests, kernels for the steps of isolation are prepared, too.
set -euo pipefail

usage="usage: wheels.sh PYTHON_VERSION PLATFORM..."
version=${1:?$usage}
shift
[ $# -gt 0 ] || { echo "$usage" >&2; exit 2; }

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
wheels=$here/wheels
platforms=()
for platform in "$@"; do platforms+=(--platform "$platform"); done

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$made" "$here/../.."
"$python" -m pip download --quiet --dest "$made" --only-binary=:all: \
  --python-version "$version" "${platforms[@]}" pydantic pytest pyyaml rich nvidia-ml-py \
  scipy fastapi uvicorn prometheus-client jinja2 lz4 zstandard

rm -rf "$wheels"
mkdir "$wheels"
mv "$made"/*.whl "$wheels"
# SciPy's need, which is where PyTorch is.
rm -f "$wheels"/numpy-*.whl
if "$python" -c 'import dovetail.isolation, nvidia.cuda_nvrtc' 2>/dev/null; then
  "$python" "$here/isolation.py" --prepare "$wheels/kernels.json.gz"
fi
du -sh "$wheels"
