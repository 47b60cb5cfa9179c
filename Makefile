# `make demo` and `make test` each work alone on a fresh machine with Python >= 3.11, pip and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help demo test timings unit unit-oldest lint wheel clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train the depth study on the embedded corpus and write runs/demo/report.html"
	@echo "make test   lint, types, import contracts, unit, property and end-to-end tests"
	@echo "make unit   the quick tests alone; make unit-oldest: the same on the oldest supported torch"
	@echo "make timings  the required times, on an idle machine"
	@echo "make wheel  the kernel's wheel: prnn_ext alone"

# One stamp per set of extras, so that each target installs only what it needs.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed; say make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.study: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[study,synth]'
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.study
	$(BIN)/python -m pip install --quiet --editable '.[study,synth,test]'
	@touch $@

demo: $(VENV)/.study
	$(BIN)/python -m experiments depth --config experiments/configs/demo.yaml --output runs/demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests run side by side, one process a core, but for those that measure time.
BESIDE := --numprocesses auto --dist worksteal
QUICK := -m "not slow and not gpu and not browser" $(BESIDE)

unit: $(VENV)/.test
	$(BIN)/python -m pytest $(QUICK)

test: lint
	$(BIN)/python -m pytest $(QUICK)
	$(BIN)/python -m pytest -m "(slow or browser) and not gpu and not alone and not idle" $(BESIDE)
	$(BIN)/python -m pytest -m alone

# Required times, which say nothing where neighbours share the processors: for an idle machine.
timings: $(VENV)/.test
	$(BIN)/python -m pytest -m idle

# The oldest torch that is supported is the one of many GPU images; the unit tests must pass on it too. torchaudio 2.11.1
# does not load beside it (an undefined symbol), though its requirements allow it.
OLDEST := .venv-oldest
$(OLDEST)/.test: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet 'torch==2.11.*' 'torchaudio==2.11.0'
	$(OLDEST)/bin/python -m pip install --quiet --editable '.[study,synth,test]'
	@touch $@

unit-oldest: $(OLDEST)/.test
	$(OLDEST)/bin/python -m pytest $(QUICK)

wheel: $(VENV)/.test
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) $(OLDEST) dist .mypy_cache .ruff_cache .pytest_cache
