# One line a target: what is longer lives in tools/.
.DEFAULT_GOAL := help
RUNS := .venv/.runs
READY := .venv/.ready
BIN := .venv/bin
SEEDS ?= 10000
# Two a processor: half of the time of the slow tests is waiting, for other programs, disks and clocks.
WORKERS ?= $(shell expr `nproc` \* 2)
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist=loadfile
# Or else each of the many processes that tests start compiles all of mq anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup dev run quick test proof judge lint format types docs pages site dist deb locked sbom compiled bench pictures layouts simulate oracle oracle-renew planted torture powercut crowd shared chaos fuzz coverage clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

$(RUNS): pyproject.toml constraints.txt plugins/mq-native/pyproject.toml plugins/mq-native/mq_native/_calls.c
	@bash tools/setup.sh

$(READY): pyproject.toml constraints.txt $(wildcard locked/dev.txt) $(wildcard plugins/*/pyproject.toml)
	@bash tools/setup.sh all

setup: $(RUNS) ## create .venv and install mq there
	@echo "mq is $(CURDIR)/$(BIN)/mq; type $(BIN)/mq to serve, $(BIN)/mq --help for more"

dev: $(READY) ## also install what tests and benchmarks need

run: $(RUNS) ## start mq on 127.0.0.1:8080 with the root /tmp/mq
	@echo "mq is $(CURDIR)/$(BIN)/mq; once it serves, type elsewhere: curl -X PUT http://127.0.0.1:8080/queue001"
	@$(BIN)/mq

quick: $(READY) ## run the fast tests, in less than two minutes
	$(PYTEST) -q -m "not slow"

test: $(READY) ## run the tests that each commit must pass, in about eight minutes
	@$(MAKE) --no-print-directory --output-sync=target -j 2 lint types collected
	$(PYTEST)

# Each process that runs tests reads what this one has compiled, while mypy has the other processor.
.PHONY: collected
collected: $(READY)
	@$(BIN)/pytest --collect-only -qq -n 0 > .venv/.collected || { cat .venv/.collected; exit 1; }

proof: $(READY) ## run the tests that a release must pass, for hours: all tests, golden digests, 10,000 seeds, power cuts, chaos, fuzzing, every Python
	@bash tools/proof.sh

judge: $(READY) ## run the AMQP client tests against RabbitMQ and record its results
	$(BIN)/pytest tests/amqp/clients -m proof --judge

lint: $(READY) ## check the code style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(READY) ## format the code
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: $(READY) ## check the types (mypy, strict)
	$(BIN)/mypy

docs: $(READY) ## check the documentation: links, examples, the table of specifications
	$(BIN)/pytest tests/test_docs.py

pages: $(READY) ## generate the parts of the documentation that come from the code
	$(BIN)/python tools/pages.py

site: $(READY) ## build the documentation site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open it by: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

build/tools/.ready: locked/tools.txt
	@bash tools/setup.sh tools

dist: build/tools/.ready ## build the wheels and the one-file program into dist/
	build/tools/bin/python tools/dist.py dist

deb: $(READY) ## build the Debian package into dist/: program, unit, man pages, completions
	$(BIN)/python tools/debian.py dist

locked: $(READY) ## update the recorded hashes of the packages that dist and CI install
	$(BIN)/python tools/lock.py

sbom: $(READY) ## list the contents of the one-file program in CycloneDX format: dist/mq.cdx.json
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements locked/dist.txt --pyproject pyproject.toml --output-reproducible -o dist/mq.cdx.json

compiled: $(READY) ## build mq with compiled hot modules in build/compiled, for tests and benchmarks
	$(BIN)/python tools/from_compiled.py

bench: $(READY) ## compare compiled mq with other brokers, for minutes; make bench FULL=1 rewrites docs/benchmarks.md
	$(BIN)/python tools/from_compiled.py --or-as-it-is -m benchmarks compare \
		$(if $(FULL),--full --out $(CURDIR)/docs/benchmarks --page $(CURDIR)/docs/benchmarks.md,--out $(CURDIR)/build/bench)

simulate: $(READY) ## run the simulation: make simulate SEEDS=1000000
	$(BIN)/python -m simulation 0-$(SEEDS)

oracle: $(READY) ## compare 400 seeded runs with their golden digests: before and after moving code
	$(BIN)/python -m tests.oracle

oracle-renew: $(READY) ## record new golden digests, after a change of behavior
	$(BIN)/python -m tests.oracle --renew

planted: $(READY) ## find new seeds for mutants that their recorded seed no longer finds, and record them
	$(BIN)/python -m tests.simulation.hunt

torture: $(READY) ## run kill -9 tests for hours: no confirmed message may be lost
	$(BIN)/pytest tests/e2e/test_kill.py --kills=2000 -s

powercut: $(READY) ## cut the power under real file systems, as root: make powercut POINTS=1000
	$(BIN)/python -m tests.crash --points $(or $(POINTS),300)

pictures: $(READY) ## make the screenshots of the web console for README.md and docs/page.md, in Chromium
	MQ_SCREENSHOTS=1 $(BIN)/python -m pytest -n0 -x -m proof tests/page/test_screenshots.py

layouts: $(READY) ## measure every view in all fonts, widths and color schemes, and keep the screenshots in build/layouts
	MQ_LAYOUTS=build/layouts $(BIN)/python -m pytest -n0 -m proof tests/page/test_layouts.py

crowd: $(READY) ## connect 2,000 HTTP clients and 500 AMQP clients at once: make crowd SECONDS=60
	$(BIN)/python -m tests.hostile.crowd --seconds $(or $(SECONDS),60)

shared: $(READY) ## run two daemons on GlusterFS, CephFS and NFS during failures of servers and links, as root: make shared MESSAGES=5000
	$(BIN)/pytest tests/hosts/test_shared_root.py -m proof --shared-messages=$(or $(MESSAGES),5000)

chaos: $(READY) ## kill, disconnect and pause cluster nodes at random, as root: make chaos MINUTES=60
	$(BIN)/python -m tests.cluster.chaos --minutes $(or $(MINUTES),5)

fuzz: $(READY) ## fuzz the parsers: make fuzz SECONDS=600
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

coverage: $(READY) ## show which branches of the storage and the broker no test takes
	@bash tools/coverage.sh

clean: ## delete everything that was built
	rm -rf .venv .tox build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz .coverage*
