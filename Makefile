# Everything a newcomer needs: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
SPARK_OPTIONS := .venv/spark.options
# More than cores: what tests do most is to wait, for commits, leases and epochs.
# A process that dies is not replaced: pytest-xdist waits for ever then, or ends without having run all tests.
PROCESSES := --numprocesses=3 --dist=loadscope --no-loadscope-reorder --max-worker-restart=0

.PHONY: help install demo test test-long test-failed check conformance coverage chaos chaos-workers chaos-warm chaos-spark-workers chaos-flows generate lint screenshots bench bench-check clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED) ## make .venv with penstock and all it needs

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "penstock needs Python 3.11 or later; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: install ## show the main job end to end on embedded services
	@$(BIN)/python examples/orders/demo.py
	@$(BIN)/python examples/shop/demo.py
	@$(BIN)/python examples/burst/demo.py
	@$(BIN)/penstock demo

test: lint $(SPARK_OPTIONS) ## run all checks and all tests but those of test-long
	$(BIN)/pytest $(PROCESSES) -m 'not long' --durations=20

test-long: $(SPARK_OPTIONS) ## run the tests that take long: kills, outages, streams, models, failing flows, demos, benchmarks
	$(BIN)/pytest $(PROCESSES) -m long --durations=20

test-failed: $(SPARK_OPTIONS) ## run the tests again that failed last, one after the other
	$(BIN)/pytest --last-failed --last-failed-no-failures=none

check: lint $(SPARK_OPTIONS) ## format, lint, types, import rules, and every example of the docs
	$(BIN)/pytest $(PROCESSES) tests/docs

conformance: $(INSTALLED) ## run every test of clients over every transport, with every way to push and to pop
	$(BIN)/pytest $(PROCESSES) tests/conformance --every-way

COVERED := tests/unit tests/integration tests/conformance tests/acceptance
coverage: $(SPARK_OPTIONS) ## run all tests but those of Spark, and print the share of lines and branches that they run
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PROCESSES) $(COVERED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

MINUTES ?= 1
chaos: install ## kill clients, maintenance and the server for MINUTES=n, by the schedule of SEED=s, and check everything
	cd tests && ../$(BIN)/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

ITEMS ?= 100000
chaos-workers: install ## kill workers and their children during ITEMS=n items, and check that each comes through once
	cd tests && ../$(BIN)/python -m chaos.items --items $(ITEMS) $(if $(SEED),--seed $(SEED))

chaos-warm: install ## kill workers, dispatchers, Valkey and PostgreSQL, and wipe Valkey, during ITEMS=n items, and check that each comes through once
	cd tests && ../$(BIN)/python -m chaos.warm --items $(ITEMS) $(if $(SEED),--seed $(SEED))

chaos-spark-workers: install ## kill executors of workers on Spark, on two clusters, during ITEMS=n items, and check the same
	cd tests && ../$(BIN)/python -m chaos.spark_items $(if $(filter command% environment%,$(origin ITEMS)),--items $(ITEMS)) $(if $(SEED),--seed $(SEED))

KILLS ?= 5
chaos-flows: $(SPARK_OPTIONS) ## kill flows KILLS=n times in the middle of their epochs, and check every message
	$(BIN)/pytest tests/spark/flows/test_kills.py -k killed_in_the_middle --kills=$(KILLS) --timeout=3600

# Empty where Java makes no archive: Spark then takes longer to begin.
$(SPARK_OPTIONS): $(INSTALLED)
	@echo "archiving the classes of Spark, once"
	@$(BIN)/python tests/java.py > /dev/null 2>&1 || true
	@touch $@

generate: install ## generate the synchronous half from the asynchronous sources
	$(BIN)/python tools/generate_sync.py

lint: install
	$(BIN)/python tools/generate_sync.py --check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

screenshots: install ## take pictures of every page of the gateway, light and dark, into docs/pictures; needs Chromium
	$(BIN)/python tools/screenshots.py

bench: install ## measure, and print what was measured; BEFORE=folder: consuming beside another checkout, too
	$(BIN)/penstock bench log
	$(BIN)/penstock bench groups
	$(BIN)/penstock bench batching
	$(BIN)/penstock bench consume $(if $(BEFORE),--before $(BEFORE))
	$(BIN)/penstock bench latency
	$(BIN)/penstock bench workers
	$(BIN)/penstock bench warm
	$(BIN)/penstock bench gateway
	$(BIN)/penstock bench spark

bench-check: install ## measure, and fail where a promised ratio is missed
	$(BIN)/penstock bench log --check
	$(BIN)/penstock bench groups --check
	$(BIN)/penstock bench batching --check
	$(BIN)/penstock bench consume --check $(if $(BEFORE),--before $(BEFORE))
	$(BIN)/penstock bench latency --check
	$(BIN)/penstock bench workers --check
	$(BIN)/penstock bench gateway --check
	$(BIN)/penstock bench spark --check

clean: ## remove what `make` made
	rm -rf .venv .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis
