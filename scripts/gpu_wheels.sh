#!/usr/bin/env bash
# wheels/ with what the suite needs beside PyTorch and its usual company, at the versions of .venv, for Python 3.12 on Linux.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
pins=$($python - <<'PY'
from importlib.metadata import version

names = """hydra-core omegaconf PyYAML packaging cloudpickle pydantic pydantic-core annotated-types typing-extensions
typing-inspection pyarrow scikit-learn narwhals joblib threadpoolctl
pytest-timeout"""
print(*(f"{name}=={version(name)}" for name in names.split()))
PY
)
# shellcheck disable=SC2086
$python -m pip download -q --dest wheels --no-deps --only-binary=:all: --python-version 3.12 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 $pins
$python -m pip wheel -q --wheel-dir wheels --no-deps "antlr4-python3-runtime==4.9.3"
ls wheels
