#!/usr/bin/env bash
# `scripts/gpu.sh MINUTES OUT [options of experiments.cli.gpu]` on a machine that has PyTorch and perhaps no network: what else is
# needed comes from wheels/ (`make gpu-wheels`), into an environment that sees the machine's own packages.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=$1 out=$2
shift 2
python=.venv/bin/python
if [ ! -x .venv/bin/python ]; then
    python=.gpu-venv/bin/python
    [ -d wheels ] || { echo "no .venv and no wheels/: run 'make gpu-wheels' where there is a network, and bring wheels/ along"; exit 2; }
    if [ ! -f .gpu-venv/.ready ]; then
        "${PYTHON:-python3}" -m venv --system-site-packages .gpu-venv
        $python -m pip install -q --no-index --no-deps wheels/*.whl
        touch .gpu-venv/.ready
    fi
fi
exec $python -m experiments.cli.gpu --minutes "$minutes" --out "$out" "$@"
