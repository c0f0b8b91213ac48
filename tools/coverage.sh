#!/usr/bin/env bash
# Which branches of the store and of the broker do their tests take? Prints the figure and what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
measured='mq/storage/*,mq/storage/files/*,mq/broker/*'
$python -m coverage erase
for tests in "tests/storage tests/broker plugins" "tests/simulation/test_seeds.py --seeds=${SEEDS:-200}" "tests/faults -k ordered"; do
    # shellcheck disable=SC2086 # words on purpose
    $python -m coverage run -m pytest -q --no-header --timeout=1800 $tests
done
$python -m coverage combine -q
$python -m coverage report --include="$measured"
