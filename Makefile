# `make` or `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
WAIT ?= 1
STREAMS ?= 2
# Tests start hundreds of processes; without bytecode on disk each of them would compile torch's sources again.
unexport PYTHONDONTWRITEBYTECODE

# The tests' tensors are small: threads of torch and BLAS would only wait for each other, in loops, on cores that the other
# processes of tests need. Pods get these variables from their sizes.
test quick nightly coverage: export OMP_NUM_THREADS = 1
test quick nightly coverage: export OPENBLAS_NUM_THREADS = 1

.PHONY: help setup check test quick nightly coverage spikes spark mutants changes demo screenshots bench lint types lock clean

help:
	@echo "make setup        install the locked environment into $(VENV)"
	@echo "make check        lint, types and every test that starts no service (the fast lane): before each commit"
	@echo "make test         all tests"
	@echo "make quick        the tests of check alone; EXAMPLES=1 for all random examples, ARGS=--lf for what failed last"
	@echo "make nightly      the tests of quick with fifty times the random examples of make test"
	@echo "make coverage     the lines that no test of quick runs"
	@echo "make spikes       tests against real Kubernetes, YARN, HDFS and object stores, built first"
	@echo "make spark        tests of clustering with Spark, fetched first (400 MB, once)"
	@echo "make mutants      break the promises of tests/mutants.toml one by one; ONLY=\"M4 W1\" for some"
	@echo "make changes      100 changes of servers and workers of one job that trains; COUNT=600 for half an hour"
	@echo "make demo         a click log, Airflow, MLflow and one training, on this machine"
	@echo "make screenshots  the pictures of README and docs, from two days of the demo"
	@echo "make bench        all figures of docs/figures.md"
	@echo "make lint, types  ruff, codespell; mypy"

setup: $(VENV)/.installed

# What every commit passes; .ci/run does all of it and more. mypy has one core: it runs beside the tests.
check: lint
	$(MAKE) --no-print-directory --jobs 2 types quick

# Reinstalls only when the lock or the packaging changes.
$(VENV)/.installed: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $$(command -v $(PYTHON) || command -v python3) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet requirements.lock
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

lock:
	$(BIN)/uv pip compile --quiet pyproject.toml --extra airflow --extra test --python-version 3.11 --no-header --no-annotate -o requirements.lock

# Every test, in two processes side by side (tests/suite/streams.py); `make test STREAMS=0` runs one test after the other.
# The browser tests say that they were left out when there is no Chromium.
test: setup
	$(BIN)/python -m pytest tests -n $(STREAMS)

# The tests that start no services: no node agent, pod, broker, MLflow or Airflow (tests/suite/services.py). Minutes
# instead of half an hour, with a quarter of the random examples that `make test` has. Three processes, also on two
# cores: these tests often wait for each other's threads and processes.
EXAMPLES ?= 0.25
quick: STREAMS = 3
quick: setup
	ELASTREC_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests -n $(STREAMS) -m "not services" $(ARGS)

nightly: setup
	ELASTREC_EXAMPLES=50 $(BIN)/python -m pytest tests -n $(STREAMS) -m "not services" --timeout 7200 $(ARGS)

# The editable package is imported by its links' names, so the rooms are named one by one.
coverage: setup
	$(BIN)/python -m pytest tests -n $(STREAMS) -m "not services" --cov=platform --cov=trainers --cov=checkpoints \
	--cov=operators --cov-report=term:skip-covered --cov-report=html:.coverage_pages

# Tests against real servers of clusters and stores, fetched and built first (about ten minutes, once);
# `make spikes PROCESSES=1` builds with one compiler at a time.
spikes: setup
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet -r tools/yarn/requirements.txt -r tools/stores/requirements.txt
	$(BIN)/python -m tools.yarn fetch
	$(BIN)/python -m tools.stores fetch
	$(BIN)/python -m tools.kubernetes build $(if $(PROCESSES),--processes $(PROCESSES))
	ELASTREC_SPIKES=1 $(BIN)/python -m pytest tests/spikes tests/checkpoints/stores/test_store.py

# Tests of clustering with Spark in local mode; needs Java.
spark: setup
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet -r tools/spark/requirements.txt
	$(BIN)/python -m pytest tests/platform/data/clustering/test_spark_sorting.py

# Breaks the product's promises one by one, in a copy, and looks for a red test; `make mutants ONLY="M4 W1"`.
mutants: setup
	nice -n 10 $(BIN)/python -m tests.mutants $(ONLY)

# One real job, changed again and again: no sample lost, flat memory, nothing left behind.
COUNT ?= 100
changes: setup
	$(BIN)/python -m tests.faults.live.many_changes --count $(COUNT)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md docs platform operators trainers checkpoints dags tests benchmarks tools

# The folder that holds the package `elastrec`; without one, links to the rooms of this checkout, and its tools.
TYPED ?= .mypy_cache/rooms
types: setup
	@if [ "$(TYPED)" = .mypy_cache/rooms ]; then rm -rf $(TYPED) && mkdir -p $(TYPED)/elastrec && \
	for room in platform operators trainers checkpoints dags; do ln -s $(CURDIR)/$$room $(TYPED)/elastrec/$$room; done && \
	for room in tools benchmarks; do ln -s $(CURDIR)/$$room $(TYPED)/$$room; done; fi
	cd $(TYPED) && MYPYPATH=. $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
	--cache-dir $(CURDIR)/.mypy_cache --explicit-package-bases --namespace-packages -p elastrec \
	$(if $(filter .mypy_cache/rooms,$(TYPED)),-p tools -p benchmarks)

demo: setup
	$(BIN)/python -m tools.stack.demo $(if $(filter 0,$(WAIT)),--no-wait)

# Trains two days of the demo's click log first.
screenshots: setup
	$(BIN)/python -m tools.screenshots

# A benchmark that cannot measure here (no TensorFlow, no control groups) says why; the others still run.
bench: setup
	$(BIN)/python -m benchmarks all

clean:
	rm -rf $(VENV) build dist *.egg-info
