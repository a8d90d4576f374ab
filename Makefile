# Everything a newcomer needs: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
SPARK_OPTIONS := .venv/spark.options
TWO_PROCESSES := --numprocesses=2 --dist=loadscope --no-loadscope-reorder

.PHONY: help install demo test check conformance coverage chaos generate lint bench bench-check clean

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
	@$(BIN)/penstock demo

test: lint $(SPARK_OPTIONS) ## run all checks and all tests
	$(BIN)/pytest $(TWO_PROCESSES) --durations=20

check: lint $(SPARK_OPTIONS) ## format, lint, types, import rules, and every example of the docs
	$(BIN)/pytest $(TWO_PROCESSES) tests/docs

conformance: $(INSTALLED) ## run every test of clients over every transport, with every way to push and to pop
	$(BIN)/pytest $(TWO_PROCESSES) tests/conformance --every-way

COVERED := tests/unit tests/integration tests/conformance tests/acceptance
coverage: $(SPARK_OPTIONS) ## run all tests but those of Spark, and print the share of lines and branches that they run
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(TWO_PROCESSES) $(COVERED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

MINUTES ?= 1
chaos: install ## kill clients, maintenance and the server for MINUTES=n, by the schedule of SEED=s, and check everything
	cd tests && ../$(BIN)/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

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

bench: install ## measure, and print what was measured; BEFORE=folder: consuming beside another checkout, too
	$(BIN)/penstock bench log
	$(BIN)/penstock bench groups
	$(BIN)/penstock bench batching
	$(BIN)/penstock bench consume $(if $(BEFORE),--before $(BEFORE))
	$(BIN)/penstock bench latency
	$(BIN)/penstock bench spark

bench-check: install ## measure, and fail where a promised ratio is missed
	$(BIN)/penstock bench log --check
	$(BIN)/penstock bench groups --check
	$(BIN)/penstock bench batching --check
	$(BIN)/penstock bench consume --check $(if $(BEFORE),--before $(BEFORE))
	$(BIN)/penstock bench latency --check
	$(BIN)/penstock bench spark --check

clean: ## remove what `make` made
	rm -rf .venv .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis
