#!/usr/bin/env bash
# One command that sets up what the tests need and runs them all:
#   a virtual environment (.venv), the dev requirements, Chromium through apt where it is missing and
#   allowed, the linter, the type checker, then every test. Arguments go to pytest, e.g.
#   `tests/run.sh -m "not slow"`.
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-python3}"
if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt

if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && apt-get install -y -qq chromium >/dev/null || echo "Chromium could not be installed."
fi

.venv/bin/ruff check .
.venv/bin/mypy
# Two workers of one thread each: small tensors gain nothing from more threads, files run side by side.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
.venv/bin/python -m pytest -n 2 --dist loadfile "$@"
