# One page: everything that a person does with a checkout. `make` alone prints the list.
# Nothing is needed but make, a POSIX shell and Python 3.11–3.13; PYTHON=… chooses which.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev,spark,kafka,fuzz,plots,fabric,ota,detect,train
ARGS ?=
SECONDS_EACH ?= 60
MINUTES ?= 10
STEPS ?= 120
PROCESSES ?= 3

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The suite starts hundreds of processes: where Python is told to keep no bytecode, each would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=

# The environment is as new as what it was made from: a changed pyproject or constraints file changes the stamp.
comma := ,
STAMP := $(VENV)/.stamp-$(subst $(comma),-,$(EXTRAS))-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

.DEFAULT_GOAL := help
.PHONY: help setup engines engines-quick warm warm-tests lint types test test-long demo bench bench-abe bench-chain bench-kafka bench-spark soak fuzz clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

$(BIN)/python:
	@python=$$(tools/find-python) || exit 1; \
	echo "making $(VENV) with $$python"; \
	"$$python" -m venv $(VENV)

# Two calls, so that the build backends too (ours, and that of Spark, which comes as source) are under the constraints.
# What pip and the builds say goes to a file, and is shown where they fail.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --progress-bar off -c constraints.txt
$(STAMP): | $(BIN)/python
	@echo "installing tallystick[$(EXTRAS)] under constraints.txt (a minute or more the first time)"
	@{ $(PIP_INSTALL) hatchling editables setuptools wheel && \
	  $(PIP_INSTALL) --no-build-isolation -e '.[$(EXTRAS)]'; } > $(VENV)/pip.log 2>&1 || \
	  { tail -n 40 $(VENV)/pip.log >&2; echo "error: pip failed; all that it said is in $(VENV)/pip.log" >&2; exit 1; }
	@rm -f $(VENV)/.stamp-*
	@touch $@

setup: $(STAMP) ## make the virtual environment and install the package with its development tools

engines: engines-quick ## fetch the engines that tests and tally dev start here, into the user's cache
	@$(BIN)/python -m engines.helm

# All but Helm, which takes four minutes of a processor, once, and which one long test alone wants.
engines-quick: setup
	@$(BIN)/python -m engines.kafka
	@$(BIN)/python -m engines.cometbft
	@$(BIN)/python -m engines.litewitness
	@$(BIN)/python -m engines.p4shell

warm: setup
	@$(BIN)/python -m compileall -q src/tallystick
	@$(BIN)/python -m tallystick.record.warm
	@$(BIN)/python -m tallystick.ledger.block
	@$(BIN)/python -W ignore tools/compile-pyspark

# What the suite's processes would else each compile for themselves, at the same time: the simulated fleet, detection, and
# the tests with their assertions. A file that cannot be collected is told by the suite.
warm-tests: warm
	@$(BIN)/tally fleet simulate --vehicles 1 --minutes 0.1 --out - > /dev/null 2>&1
	@$(BIN)/python -m tallystick.fleet.detect.warm
	@$(BIN)/pytest -n0 --collect-only -qq > /dev/null || true

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict, of package and tests
	$(BIN)/mypy
	find tests -mindepth 2 -name conftest.py | xargs -n 1 $(BIN)/mypy

# Three processes share the suite, also on two cores, since engines make their tests wait: one begins with Spark, one
# with brokers and chains, the third with the rest (tests/conftest.py). What comes before has two processes: the types
# take as long as all else. The set-up's seconds are handed to pytest, which prints the time budget above its closing
# line. On the integration machine a test that fails is run once more and told by name (-rR): engines and sockets in
# real time, on a machine that stands still for seconds, fail some test of thousands in half of all runs.
# Without Chromium the tests of pages are left out, except where engines are required.
define pytest
	@started=$$(date +%s); \
	tools/ensure-java && { tools/ensure-chromium || [ -z "$$TALLY_REQUIRE_ENGINES" ]; } && \
	  $(MAKE) --no-print-directory -j 2 setup $${TALLY_REQUIRE_ENGINES:+$(3)} $(2) || exit 1; \
	TALLY_SETUP_S=$$(( $$(date +%s) - started )) $(BIN)/python -m pytest -n $(PROCESSES) $(if $(CI),--reruns 1 -rR) -m '$(1)' $(ARGS)
endef

test: ## set everything up, then lint, types and the suite but for the long tests (ARGS="-k name" narrows it)
	$(call pytest,not long,types warm-tests lint,engines-quick)

test-long: ## the long tests: engines killed and restarted, hundreds of seeds, figures, fuzzing, the oldest libraries
	$(call pytest,long,warm-tests,engines)

# Without Java the demo says so and leaves Spark out.
demo: setup warm ## the whole story with every attack, some minutes (ARGS="--skip-spark" leaves Spark out)
	@tools/ensure-java || true
	@$(BIN)/tally demo $(ARGS)

bench: setup warm ## the benchmarks, in some five minutes; writes build/bench/spine.json (ARGS="--only sealing" narrows it)
	@$(BIN)/python benchmarks/spine.py $(ARGS)

bench-abe: setup ## policy locks against BSW07, matching a million interests; writes build/bench/abe.json
	@$(BIN)/python benchmarks/abe.py $(ARGS)

bench-chain: setup engines-quick warm ## the ledger on SQLite, one and four validators; writes build/bench/chain.json
	@$(BIN)/python benchmarks/chain.py $(ARGS)

bench-spark: setup warm ## reading and writing in Spark against JSON; writes build/bench/spark.json (ARGS="--only stream" narrows it)
	@tools/ensure-java && $(BIN)/python benchmarks/spark.py $(ARGS)

bench-kafka: setup engines-quick warm ## parcels through Kafka against plain Kafka; writes build/bench/kafka.json
	@$(BIN)/python benchmarks/kafka.py $(ARGS)

.PHONY: bench-pages bench-compare bench-isolation bench-overlay bench-mesh bench-fabric bench-ota bench-detect bench-console
bench-pages: setup ## take the results of build/bench to benchmarks/results, and write the tables of the pages from there
	@$(BIN)/python benchmarks/pages.py

bench-compare: setup ## BASE=commit and the working tree in turns: every row that moved beyond its noise (ARGS="--only sealing")
	@[ -n "$(BASE)" ] || { echo "error: no BASE" >&2; echo "hint: make bench-compare BASE=HEAD~1" >&2; exit 2; }
	@$(BIN)/python benchmarks/compare.py $(BASE) $(ARGS)

bench-isolation: setup warm ## an honest tenant beside a hostile one; writes build/bench/isolation.json (ARGS="--quick")
	@$(BIN)/python benchmarks/isolation.py $(ARGS)

bench-overlay: setup warm ## secrets and parcels through virtual nodes; writes build/bench/overlay.json (ARGS="--only hops")
	@$(BIN)/python benchmarks/overlay.py $(ARGS)

bench-mesh: setup ## notifications, bytes and what timing tells on the mesh; writes build/bench/mesh.json (ARGS="--only sim")
	@$(BIN)/python benchmarks/mesh.py $(ARGS)

bench-fabric: setup warm ## publications through switches, as root; writes build/bench/fabric.json (ARGS="--quick")
	@$(BIN)/python benchmarks/fabric.py $(ARGS)

bench-ota: setup warm ## large objects and updates over the air; writes build/bench/ota.json (ARGS="--only fetch")
	@$(BIN)/python benchmarks/ota.py $(ARGS)

bench-detect: setup warm ## attacks on the CAN bus, found and missed; writes build/bench/detect.json (ARGS="--only checks")
	@tools/ensure-java && $(BIN)/python benchmarks/detect.py $(ARGS)

bench-console: setup warm ## how long people wait for the console, and what it takes; writes build/bench/console.json (ARGS="--only pages")
	@$(BIN)/python benchmarks/console.py $(ARGS)

soak: setup warm ## seeded worlds (MINUTES=10, or SEEDS=1000; FIRST=… chooses), then the suite with fresh seeds (SUITE=1)
	@first=$${FIRST:-$$(date +%s)}; echo "simulating from seed $$first on"; \
	$(BIN)/python -m tallystick.sim --seed "$$first" --steps $(STEPS) \
	  $(if $(SEEDS),--count $(SEEDS),--minutes $(MINUTES)); \
	PYTHONPATH=tests $(BIN)/python tests/overlay/soak.py --seed "$$first" $(if $(SEEDS),--count $(SEEDS),--minutes $(MINUTES)); \
	PYTHONPATH=tests:tests/objects $(BIN)/python tests/objects/soak_fetches.py --seed "$$first" $(if $(SEEDS),--count $(SEEDS),--minutes $(MINUTES))
	@[ -z "$(SUITE)" ] || TALLY_PROFILE=soak $(BIN)/python -m pytest $(ARGS)

fuzz: setup warm ## every atheris target of tests/fuzz for SECONDS_EACH seconds
	@set -e; for target in tests/fuzz/fuzz_*.py; do \
	  echo "$$target"; $(BIN)/python "$$target" -max_total_time=$(SECONDS_EACH); \
	done

clean: ## remove the virtual environment, caches and everything built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
