# One line a target: what is longer lives in tools/.
.DEFAULT_GOAL := help
READY := .venv/.ready
BIN := .venv/bin
SEEDS ?= 10000

.PHONY: help setup venv run test quick lint format types docs dist compiled bench simulate torture powercut shared chaos fuzz coverage clean

help: ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)
	@bash tools/setup.sh

setup venv: $(READY) ## make .venv with everything in it

run: $(READY) ## serve on 127.0.0.1:8080 with the root /tmp/mq
	$(BIN)/mq

test: lint types ## everything, slow tests included; what tests/test_compiled.py needs is compiled meanwhile
	mkdir -p build; $(BIN)/python tools/from_compiled.py --level 0 >build/compiled.log 2>&1 & $(BIN)/pytest

quick: $(READY) ## the tests that take seconds
	$(BIN)/pytest -m "not slow" -q

lint: $(READY) ## style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(READY) ## put the style right
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: $(READY) ## strict types
	$(BIN)/mypy

docs: $(READY) ## are the pages true: links, examples, the table of seeds
	$(BIN)/pytest tests/test_docs.py

dist: $(READY) ## build the wheel and the one-file program into dist/
	$(BIN)/python tools/dist.py dist

compiled: $(READY) ## mq with its hot modules compiled, in build/compiled, to run tests and benchmarks from
	$(BIN)/python tools/from_compiled.py

bench: $(READY) ## mq compiled beside its peers, minutes; make bench FULL=1 measures all and rewrites docs/benchmarks.md
	$(BIN)/python tools/from_compiled.py --or-as-it-is -m benchmarks all --state $(CURDIR)/build/bench \
		$(if $(FULL),--full --out $(CURDIR)/docs/benchmarks --page $(CURDIR)/docs/benchmarks.md,--out $(CURDIR)/build/bench)

simulate: $(READY) ## the seeded simulation: make simulate SEEDS=1000000
	$(BIN)/python -m mq.testing.simulate 0-$(SEEDS)

torture: $(READY) ## kill -9 for hours: nothing acknowledged is lost
	$(BIN)/pytest tests/e2e/test_kill.py --kills=2000 -s

powercut: $(READY) ## cut the power under real file systems, as root: make powercut POINTS=1000
	$(BIN)/python -m tests.crash --points $(or $(POINTS),300)

shared: $(READY) ## two brokers on a GlusterFS volume while copies die and cables are pulled, as root: make shared MESSAGES=5000
	$(BIN)/pytest tests/hosts/test_shared_root.py --shared-messages=$(or $(MESSAGES),5000)

chaos: $(READY) ## kill, cut off and pause the nodes of a cluster at random, as root: make chaos MINUTES=60
	$(BIN)/python -m tests.cluster.chaos --minutes $(or $(MINUTES),5)

fuzz: $(READY) ## fuzz the parsers: make fuzz SECONDS=600
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

coverage: $(READY) ## which branches of the store and the broker no test takes
	@bash tools/coverage.sh

clean: ## forget what was built
	rm -rf .venv .tox build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz .coverage*
