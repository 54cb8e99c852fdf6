# make setup | test | quick | spikes | mutants | demo | bench | lint | types   (see README.md)
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
WAIT ?= 1
STREAMS ?= 2

.PHONY: setup test quick spikes mutants demo bench lint types lock clean

setup: $(VENV)/.installed

# Reinstalls only when the lock or the packaging changes.
$(VENV)/.installed: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $$(command -v $(PYTHON) || command -v python3) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet requirements.lock
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

lock:
	$(BIN)/uv pip compile --quiet pyproject.toml --extra airflow --extra test --python-version 3.11 --no-header --no-annotate -o requirements.lock

# Every test, in two processes side by side (tests/streams.py); `make test STREAMS=0` runs one test after the other.
# The browser tests say that they were left out when there is no Chromium.
test: setup
	$(BIN)/python -m pytest tests -n $(STREAMS)

# The tests that start no services: no node agent, pod, broker, MLflow or Airflow. Minutes instead of half an hour.
quick: setup
	$(BIN)/python -m pytest tests -n $(STREAMS) -m "not services"

# Tests against real servers of clusters and stores, fetched and built first (about ten minutes, once);
# `make spikes PROCESSES=1` builds with one compiler at a time.
spikes: setup
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet -r tools/yarn/requirements.txt -r tools/stores/requirements.txt
	$(BIN)/python -m tools.yarn fetch
	$(BIN)/python -m tools.stores fetch
	$(BIN)/python -m tools.kubernetes build $(if $(PROCESSES),--processes $(PROCESSES))
	ELASTREC_SPIKES=1 $(BIN)/python -m pytest tests/spikes tests/checkpoints/stores/test_store.py

# Breaks the product's promises one by one, in a copy, and looks for a red test; `make mutants ONLY="M4 W1"`.
mutants: setup
	nice -n 10 $(BIN)/python -m tests.mutants $(ONLY)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md docs platform operators trainers checkpoints dags tests benchmarks tools

# The folder that holds the package `elastrec`; without one, links to the rooms of this checkout.
TYPED ?= .mypy_cache/rooms
types: setup
	@if [ "$(TYPED)" = .mypy_cache/rooms ]; then rm -rf $(TYPED) && mkdir -p $(TYPED)/elastrec && \
	for room in platform operators trainers checkpoints dags; do ln -s $(CURDIR)/$$room $(TYPED)/elastrec/$$room; done; fi
	cd $(TYPED) && MYPYPATH=. $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
	--cache-dir $(CURDIR)/.mypy_cache --explicit-package-bases --namespace-packages -p elastrec

demo: setup
	$(BIN)/python -m tools.stack.demo $(if $(filter 0,$(WAIT)),--no-wait)

# A benchmark that cannot measure here (no TensorFlow, no control groups) says why; the others still run.
bench: setup
	@failed=; for name in $(filter-out figures,$(basename $(notdir $(wildcard benchmarks/[a-z]*.py)))); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name || failed="$$failed $$name"; done; \
	if [ -n "$$failed" ]; then echo "without figures:$$failed"; exit 1; fi

clean:
	rm -rf $(VENV) build dist *.egg-info
