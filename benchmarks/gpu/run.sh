#!/usr/bin/env bash
# Do the next slice of the first campaign on this machine's GPU; call it again to go on.
#
#     benchmarks/gpu/run.sh OUT [--cpu] [--minutes 9]
#
# Everything is in README.md next to this file. PYTHON names a Python with PyTorch (default:
# python3). Where Dovetail or pytest is not installed there, the wheels that wheels.sh has collected
# are unpacked next to themselves and nothing of the environment is changed.
set -euo pipefail

# Where container runtimes and hosts of containers put the driver; the control program of MPS is
# not on the PATH then.
driver=/usr/local/nvidia
if [ -d $driver ]; then
  export PATH=$PATH:$driver/bin
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$driver/lib64
fi

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
installed=$here/wheels/installed

# Of pytest's plugins that happen to be installed, none has a say.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1

complete() { "$python" -c 'import dovetail.cli.main, pydantic, pytest, rich, yaml, pynvml' 2>/dev/null; }

if ! complete; then
  export PYTHONPATH=$installed${PYTHONPATH:+:$PYTHONPATH}
  if ! complete; then
    if ! ls "$here"/wheels/*.whl >/dev/null 2>&1; then
      echo "run.sh: $python has no Dovetail or no pytest, and wheels/ is empty: run wheels.sh first" >&2
      exit 2
    fi
    rm -rf "$installed"
    "$python" -m pip install --quiet --no-index --no-deps --target "$installed" "$here"/wheels/*.whl
  fi
fi
exec "$python" "$here/slice.py" "$@"
