#!/usr/bin/env bash
# Measure what is worth most on this machine's GPU for some minutes; call it again to go on.
#
#     benchmarks/gpu/run.sh [RESULTS] [--minutes 9] [--archive FILE] [--measure-all] [--dry-run]
#     benchmarks/gpu/run.sh isolation [--out FOLDER] [--only STEP] [--minutes 10] [--archive FILE]
#                                     [--stand-in]
#     benchmarks/gpu/run.sh limits [--proof limits.json]
#
# Everything is in README.md next to this file. PYTHON names a Python with PyTorch (default:
# python3). Where Dovetail or pytest is not installed there, the wheels that wheels.sh has collected
# are unpacked next to themselves, into an environment that also sees all of that Python's packages;
# nothing else on the machine is changed.
set -euo pipefail

# Where container runtimes and hosts of containers put the driver; the control program of MPS is
# not on the PATH then.
driver=/usr/local/nvidia
if [ -d $driver ]; then
  export PATH=$PATH:$driver/bin
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$driver/lib64
fi
# Isolation has PTX assembled; a CUDA toolkit is often not on the PATH either.
if ! command -v ptxas >/dev/null && [ -d /usr/local/cuda/bin ]; then
  export PATH=$PATH:/usr/local/cuda/bin
fi

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
installed=$here/wheels/installed

# Of pytest's plugins that happen to be installed, none has a say.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1

complete() { "$1" -c 'import dovetail.cli.main, pydantic, pytest, rich, yaml, pynvml' 2>/dev/null; }

if ! complete "$python"; then
  bare=$python python=$installed/bin/python
  if ! complete "$python"; then
    if ! ls "$here"/wheels/*.whl >/dev/null 2>&1; then
      echo "run.sh: $bare has no Dovetail or no pytest, and wheels/ is empty: run wheels.sh first" >&2
      exit 2
    fi
    rm -rf "$installed"
    "$bare" -m venv --without-pip "$installed"
    packages=$("$python" -c 'import site; print(site.getsitepackages()[0])')
    "$bare" -m pip install --quiet --no-index --no-deps --target "$packages" "$here"/wheels/*.whl
    # A .pth file, since children of Dovetail get no PYTHONPATH.
    "$bare" -c 'import sys
for path in sys.path[1:]:
    if path.endswith("-packages"):
        print(f"import site; site.addsitedir({path!r})")' >"$packages/bare.pth"
  fi
fi
if [ "${1:-}" = limits ]; then
  shift
  exec "$python" -m pytest -q "$here/../../tests/gpu/test_limits.py" \
    "$here/../../tests/gpu/test_memory.py::test_memory_limit" --proof limits.json "$@"
fi
script=slice.py
if [ "${1:-}" = isolation ]; then
  script=isolation.py
  shift
fi
exec "$python" "$here/$script" "$@"
