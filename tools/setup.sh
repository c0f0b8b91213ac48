#!/usr/bin/env bash
# Makes .venv with mq, its tools and every plugin in it, all editable. Takes the Python named by $PYTHON,
# else the first of these that is 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."

for python in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    python=
done
if [ -z "$python" ]; then
    echo "mq needs Python 3.11 or newer; name one: make setup PYTHON=/path/to/python" >&2
    exit 1
fi

[ -f .venv ] && rm .venv # tox leaves a note of its own environment under this name
[ -x .venv/bin/python ] || "$python" -m venv .venv
packages=(-e '.[dev]')
for plugin in plugins/*/pyproject.toml; do
    [ -e "$plugin" ] && [ "$plugin" != plugins/mq-native/pyproject.toml ] && packages+=(-e "$(dirname "$plugin")")
done
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "${packages[@]}"
if [ -e plugins/mq-native ] && ! log=$(.venv/bin/python -m pip install --quiet --disable-pip-version-check -e plugins/mq-native 2>&1); then
    echo "$log" | grep -i error | head -3 >&2 || true
    echo "setup: mq-native could not be compiled (apt install gcc libc6-dev python3-dev); mq is slower without it, and no different" >&2
fi
touch .venv/.ready
