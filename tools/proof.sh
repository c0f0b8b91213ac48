#!/usr/bin/env bash
# What a release needs, hours of it: make proof. Goes on after a failure; says at the end what passed and how long it took.
# Power cuts and chaos need root; they skip where they cannot be had, and say why.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
workers=${WORKERS:-$(nproc)}
results=()
failed=0

step() {
    local name=$1 began=$SECONDS verdict=passed
    shift
    echo "== $name: $*"
    "$@" || { verdict=FAILED failed=1; }
    results+=("$(printf '%6d s  %-6s  %s' $((SECONDS - began)) "$verdict" "$name")")
}

for found in "$HOME"/.pyenv/versions/3.*/bin; do # tox looks for each Python on the path
    [ -d "$found" ] && PATH=$PATH:$found
done

step style "$bin/ruff" check .
step types "$bin/mypy"
step tests "$bin/pytest" -n "$workers" --dist=loadfile -m "" --kills="${KILLS:-50}" --closes=3
step oracle "$bin/python" -m tests.oracle --processes "$workers"
step seeds "$bin/python" -m simulation "0-${SEEDS:-10000}" --processes "$workers"
step "seeds with the log" "$bin/python" -m simulation "0-${SEEDS:-10000}" --log --processes "$workers"
step "power cuts" "$bin/python" -m tests.crash --points "${POINTS:-300}"
step chaos "$bin/python" -m tests.cluster.chaos --minutes "${MINUTES:-10}"
step "a crowd" "$bin/python" -m tests.hostile.crowd
step fuzz "$bin/python" -m tests.fuzz --seconds "${FUZZ_SECONDS:-120}"
step tox "$bin/tox"

echo "== proof, ${SECONDS} s"
printf '%s\n' "${results[@]}"
exit "$failed"
