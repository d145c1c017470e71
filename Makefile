# make demo   traces a small transformer on this machine and prints the report
# make test   lint, format, types, import contract, tests
# make bench  ratios of speed and overhead (minutes)
# make gpu    the tests that need a CUDA device

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: demo test lint types unit gpu bench clean
.DEFAULT_GOAL := demo

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/tracer demo

test: lint types unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/basedpyright

unit: $(VENV)/.installed-dev
	$(BIN)/pytest -n $(JOBS) -m "not gpu"

gpu:
	$(BIN)/pytest -m gpu

bench: $(VENV)/.installed-dev
	set -e; for file in benchmarks/bench_*.py; do $(BIN)/python -m benchmarks.$$(basename $$file .py); done

clean:
	rm -rf $(VENV) build *.egg-info
