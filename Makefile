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

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

$(RUNS): pyproject.toml constraints.txt plugins/mq-native/pyproject.toml plugins/mq-native/mq_native/_calls.c
	@bash tools/setup.sh

$(READY): pyproject.toml constraints.txt $(wildcard locked/dev.txt) $(wildcard plugins/*/pyproject.toml)
	@bash tools/setup.sh all

setup: $(RUNS) ## make .venv with mq in it
	@echo "mq is $(CURDIR)/$(BIN)/mq; type $(BIN)/mq to serve, $(BIN)/mq --help for more"

dev: $(READY) ## make .venv with all that tests and benchmarks need, too

run: $(RUNS) ## serve on 127.0.0.1:8080 with the root /tmp/mq
	@echo "mq is $(CURDIR)/$(BIN)/mq; once it serves, type elsewhere: curl -X PUT http://127.0.0.1:8080/queue001"
	@$(BIN)/mq

quick: $(READY) ## the tests that take seconds, in less than two minutes
	$(PYTEST) -q -m "not slow"

test: $(READY) ## what each commit passes, in about eight minutes
	@$(MAKE) --no-print-directory --output-sync=target -j 2 lint types collected
	$(PYTEST)

# Each process that runs tests reads what this one has compiled, while mypy has the other processor.
.PHONY: collected
collected: $(READY)
	@$(BIN)/pytest --collect-only -qq -n 0 > .venv/.collected || { cat .venv/.collected; exit 1; }

proof: $(READY) ## what a release passes, in hours: all tests, the oracle, 10,000 seeds, power cuts, chaos, fuzzing, every Python
	@bash tools/proof.sh

judge: $(READY) ## ask RabbitMQ whether the tests of AMQP's clients are right, and write down what it says
	$(BIN)/pytest tests/amqp/clients -m proof --judge

lint: $(READY) ## style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(READY) ## put the style right
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: $(READY) ## strict types
	$(BIN)/mypy

docs: $(READY) ## are the pages true: links, examples, the table of seeds
	$(BIN)/pytest tests/test_docs.py

pages: $(READY) ## write the parts of the pages that are made from the code
	$(BIN)/python tools/pages.py

site: $(READY) ## make the site of the docs in build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open it by: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

build/tools/.ready: locked/tools.txt
	@bash tools/setup.sh tools

dist: build/tools/.ready ## build the wheels and the one-file program into dist/
	build/tools/bin/python tools/dist.py dist

deb: $(READY) ## build the package for Debian into dist/: program, unit, man pages, completions
	$(BIN)/python tools/debian.py dist

locked: $(READY) ## write down anew the hashes of what dist and CI install
	$(BIN)/python tools/lock.py

sbom: $(READY) ## what is in the one-file program, as CycloneDX: dist/mq.cdx.json
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements locked/dist.txt --pyproject pyproject.toml --output-reproducible -o dist/mq.cdx.json

compiled: $(READY) ## mq with its hot modules compiled, in build/compiled, to run tests and benchmarks from
	$(BIN)/python tools/from_compiled.py

bench: $(READY) ## mq compiled beside its peers, minutes; make bench FULL=1 rewrites docs/benchmarks.md
	$(BIN)/python tools/from_compiled.py --or-as-it-is -m benchmarks compare \
		$(if $(FULL),--full --out $(CURDIR)/docs/benchmarks --page $(CURDIR)/docs/benchmarks.md,--out $(CURDIR)/build/bench)

simulate: $(READY) ## the seeded simulation: make simulate SEEDS=1000000
	$(BIN)/python -m mq.testing.simulate 0-$(SEEDS)

oracle: $(READY) ## do 400 seeds still do what is written down of them: before and after code moves
	$(BIN)/python -m tests.oracle

oracle-renew: $(READY) ## write down what they do, after a change that was meant to change it
	$(BIN)/python -m tests.oracle --renew

planted: $(READY) ## find a seed for each planted bug whose own finds it no more, and write it down
	$(BIN)/python -m tests.simulation.hunt

torture: $(READY) ## kill -9 for hours: nothing acknowledged is lost
	$(BIN)/pytest tests/e2e/test_kill.py --kills=2000 -s

powercut: $(READY) ## cut the power under real file systems, as root: make powercut POINTS=1000
	$(BIN)/python -m tests.crash --points $(or $(POINTS),300)

pictures: $(READY) ## make the pictures of the console for README.md and docs/page.md, in Chromium
	MQ_SCREENSHOTS=1 $(BIN)/python -m pytest -n0 -x -m proof tests/page/test_screenshots.py

layouts: $(READY) ## measure every view in all fonts, widths and schemes, and keep the screenshots in build/layouts
	MQ_LAYOUTS=build/layouts $(BIN)/python -m pytest -n0 -m proof tests/page/test_layouts.py

crowd: $(READY) ## 2,000 clients over HTTP and 500 over AMQP at once: make crowd SECONDS=60
	$(BIN)/python -m tests.hostile.crowd --seconds $(or $(SECONDS),60)

shared: $(READY) ## two brokers on GlusterFS, CephFS and NFS while copies die and cables are pulled, as root: make shared MESSAGES=5000
	$(BIN)/pytest tests/hosts/test_shared_root.py -m proof --shared-messages=$(or $(MESSAGES),5000)

chaos: $(READY) ## kill, cut off and pause the nodes of a cluster at random, as root: make chaos MINUTES=60
	$(BIN)/python -m tests.cluster.chaos --minutes $(or $(MINUTES),5)

fuzz: $(READY) ## fuzz the parsers: make fuzz SECONDS=600
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

coverage: $(READY) ## which branches of the store and the broker no test takes
	@bash tools/coverage.sh

clean: ## forget what was built
	rm -rf .venv .tox build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz .coverage*
