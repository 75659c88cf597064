# Every target makes the virtual environment it needs. The first Python of this list that is 3.11 or newer is used;
# `make PYTHON=/path/to/python test` names another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LISTEN ?= 127.0.0.1:8080
CODE := src tests scripts
ORDINARY := not slow and not referee
# Two at once, whole files: on more, tests that look at the clock would be held up by each other.
AT_ONCE := -n 2 --dist loadfile

.PHONY: serve test test-slow check format bench referee test-models docs clean help

help:
	@echo "make serve        install, fetch the default model, serve it on http://$(LISTEN)"
	@echo "make test         the ordinary tests (fetches the default model)"
	@echo "make test-slow    the tests that take minutes"
	@echo "make check        format, lint, types, import contracts, file budget, generated docs"
	@echo "make format       rewrite the sources in the project's format"
	@echo "make docs         write docs/cli.md again from the commands"
	@echo "make bench        measure the models in models/ and write docs/benchmarks.md (BENCH='--against llama.cpp FOLDER')"
	@echo "make referee      write tests/golden again with llama.cpp (builds llama-cpp-python)"
	@echo "make test-models  fetch the three further test models (1.9 GB)"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Phobos needs Python 3.11 or newer: install one, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: install the venv module (Debian: apt install python3-venv)" >&2; exit 1; }

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	@echo "installing Phobos into $(VENV)"
	@$(PIP) install --upgrade pip
	@$(PIP) install -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing Phobos and its development tools into $(VENV)"
	@$(PIP) install --upgrade pip
	@$(PIP) install -e '.[dev]'
	@touch $@ $(VENV)/.runtime

serve: $(VENV)/.runtime
	@$(BIN)/phobos-cli pull smollm2 --if-missing
	@$(BIN)/phobos-cli --gguf smollm2 --listen $(LISTEN)

test: $(VENV)/.dev
	@$(BIN)/phobos-cli pull smollm2 --if-missing
	@$(BIN)/pytest -m "$(ORDINARY)" $(AT_ONCE)

test-slow: $(VENV)/.dev
	@$(BIN)/phobos-cli pull smollm2 --if-missing
	@$(BIN)/pytest -m "slow and not referee" --timeout=1800

check: $(VENV)/.dev
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo "run make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/checks/check_budget.py
	@$(BIN)/python scripts/write_cli_docs.py --check

format: $(VENV)/.dev
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

docs: $(VENV)/.dev
	@$(BIN)/python scripts/write_cli_docs.py

bench: $(VENV)/.runtime
	@$(BIN)/phobos-cli pull smollm2 --if-missing
	@$(BIN)/python scripts/measure/write_benchmarks.py $(BENCH)

referee: $(VENV)/.dev
	@$(BIN)/phobos-cli pull smollm2 --if-missing
	@test -x $(VENV)/referee/bin/python || $(BIN)/python -m venv $(VENV)/referee
	@echo "building llama-cpp-python (some minutes)"
	@$(VENV)/referee/bin/python -m pip --disable-pip-version-check --quiet install 'llama-cpp-python==0.3.36' numpy
	@PYTHONPATH=tests $(BIN)/python -m golden.make_golden
	@PYTHONPATH=tests $(BIN)/python -m golden.make_families
	@PYTHONPATH=tests $(BIN)/python -m golden.accuracy --write

test-models: $(VENV)/.dev
	@$(BIN)/python scripts/fetch_test_models.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
