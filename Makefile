# Every target builds what it needs. Requirements: a checkout, Python >= 3.11 and network access to PyPI.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# What pip would do on one core; what a package holds that is no Python (templates, examples of errors) is no failure.
COMPILE := $(BIN)/python -W ignore -m compileall -qq -j 0 $(VENV)/lib || true
RUNTIME := $(VENV)/.installed-runtime
DEV     := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help demo test lint format types unit slow docs package clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

demo: $(RUNTIME) ## protect Python's standard library: compare four models and write a report
	@echo "==> hush demo (some minutes on two cores)"
	@$(BIN)/hush demo --force $(DEMO)
	@echo "    (hush is $(BIN)/hush here)"

test: lint types unit docs ## every check that a change must pass
	@echo "==> all checks passed"

lint: $(DEV) ## style and formatting
	@echo "==> ruff check, ruff format --check"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(DEV) ## rewrite the sources in the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(DEV) ## static types, strict for the mathematical packages
	@echo "==> basedpyright"
	@$(BIN)/basedpyright

unit: $(DEV) ## tests, doctests and documentation snippets
	@echo "==> pytest"
	@$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder # the quick doctests of src come last

slow: $(DEV) ## the long randomised sweeps that are not part of test
	@echo "==> pytest -m slow"
	@$(BIN)/pytest -m slow

docs: $(DEV) ## build the documentation into site/; warnings are errors
	@echo "==> mkdocs build --strict"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: $(DEV) ## build wheel and sdist; try the wheel with each Python from 3.11 to 3.13 that is found
	@$(BIN)/python tests/packaging/package.py $(PACKAGE)

clean: ## remove everything that can be rebuilt
	rm -rf $(VENV) site build dist .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamp files, so that the demo does not install the developer tools. The demo needs the extras hf (language models)
# and scan (parsers of code).
$(RUNTIME): pyproject.toml constraints.txt
	@echo "==> installing hush[hf,scan] into $(VENV): PyTorch, transformers and parsers of code; takes some minutes"
	@echo "    (first time, or its dependencies changed)"
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"hush needs Python >= 3.11 but $(PYTHON) is {v[0]}.{v[1]}; run make PYTHON=python3.11 (or newer)")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[hf,scan]'
	@$(COMPILE)
	@touch $@

$(DEV): $(RUNTIME)
	@echo "==> installing the developer tools into $(VENV)"
	@$(PIP) --editable '.[dev]'
	@$(COMPILE)
	@touch $@
