#!/usr/bin/env bash
# Makes .venv, everything in it editable. Without an argument it gets what `make run` runs: mq and, where there is a
# C compiler, mq-native. With `all` it gets what tests and benchmarks use, too. It grows from the one to the other.
# With `tools` it makes build/tools instead, which has what builds the wheels and the one-file program, and nothing else.
# Takes the Python named by $PYTHON, else the first of these that is 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=${1:-}
folder=.venv
[ "$wanted" != tools ] || folder=build/tools

say() { echo "setup: $*" >&2; }

for python in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    python=
done
if [ -z "$python" ]; then
    say "mq needs Python 3.11 or newer; name one: make setup PYTHON=/path/to/python"
    exit 1
fi

without_venv() {
    say "$("$python" --version) has no module $1; install it with: apt install python3-venv"
    exit 1
}

[ -f .venv ] && rm .venv # tox leaves a note of its own environment under this name
if [ ! -x $folder/bin/python ]; then
    say "making $folder with $("$python" --version)"
    "$python" -c 'import venv' 2>/dev/null || without_venv venv
    "$python" -m venv --without-pip $folder
fi
pip=("$python" -m pip --python $folder/bin/python) # faster than to bring a pip into it first
if ! "${pip[@]}" --version >/dev/null 2>&1; then # no pip there, or one older than 22.3
    say "bringing pip into $folder"
    "$python" -c 'import ensurepip' 2>/dev/null || without_venv ensurepip
    $folder/bin/python -m ensurepip >/dev/null
    pip=($folder/bin/python -m pip)
fi
if [ "$wanted" = tools ]; then
    "${pip[@]}" install -qq --disable-pip-version-check --no-compile --require-hashes -r locked/tools.txt
    touch build/tools/.ready
    say "done in $SECONDS s; build/tools has $(du -sm build/tools | cut -f1) MB"
    exit
fi
# Python compiles what is imported; all of it would take longer than the rest.
install=("${pip[@]}" install -qq --disable-pip-version-check --constraint constraints.txt --no-compile)

# Where locked/dev.txt was written for this Python and machine, as in CI, nothing is installed whose hash is not in it.
here=$("$python" -c 'import platform, sys; print("Python {}.{}".format(*sys.version_info), platform.system(), platform.machine())')
locked=
[ "$wanted" = all ] && head -1 locked/dev.txt 2>/dev/null | grep -qF " on $here. " && locked=yes

native() {
    "${install[@]}" --no-deps ${locked:+--no-build-isolation} -e plugins/mq-native
}

if [ -n "$locked" ]; then
    say "installing what is in locked/dev.txt, each file by its hash: 1.4 GB, minutes"
    "${install[@]}" --require-hashes -r locked/dev.txt
fi
if [ -e plugins/mq-native ]; then
    say "compiling mq-native, beside what follows"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    native >"$log" 2>&1 &
    compiling=$!
fi
if [ "$wanted" = all ]; then
    [ -n "$locked" ] || say "installing mq, its tests and benchmarks and what those need: 1.4 GB, minutes"
    packages=(-e .)
    for plugin in plugins/*/pyproject.toml; do
        [ -e "$plugin" ] && [ "$plugin" != plugins/mq-native/pyproject.toml ] && packages+=(-e "$(dirname "$plugin")")
    done
else
    say "installing mq and what it needs: 30 MB, seconds"
    packages=(-e .)
fi
if [ -n "$locked" ]; then
    "${install[@]}" --no-deps --no-build-isolation "${packages[@]}"
else
    "${install[@]}" pip
    # The pip of an older Python does not know --group: 25.1 or newer does, and .venv has it now.
    install=(.venv/bin/python -m pip "${install[@]:${#pip[@]}}")
    "${install[@]}" "${packages[@]}" $([ "$wanted" != all ] || echo --group dev)
fi
if [ -n "${compiling:-}" ] && ! wait "$compiling"; then
    grep -E 'error: command|fatal error:' "$log" | head -3 >&2 || true
    say "mq-native could not be compiled (apt install gcc libc6-dev python3-dev); mq is slower without it, and no different"
fi
PYTHONDONTWRITEBYTECODE='' .venv/bin/python -c 'import mq.cli.serve' # compiles what serving imports, for all starts
touch .venv/.runs
[ "$wanted" != all ] || touch .venv/.ready
say "done in $SECONDS s; .venv has $(du -sm .venv | cut -f1) MB"
