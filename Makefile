# Every verb sets up what it needs in .venv by itself; the second time that costs nothing.
#
#   make demo ARGS="--kill"       what follows ARGS= goes to the program behind the verb
#   make test ARGS="-k fence"
#   make test PYTHON=python3.13 VENV=.venv-3.13

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin

.PHONY: help demo test check fix bench requirements clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  \033[1mmake %-6s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\n  ARGS="..." is handed on, as in: make demo ARGS="--kill" · make test ARGS="-k fence"\n'

demo: $(VENV)/.ready-run ## Run January 2013's flights through two workers, and check every plane
	@$(BIN)/python -m selaras.demo $(ARGS)

test: $(VENV)/.ready-test ## Run the tests
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.ready-check ## Check style, types, architecture, dependencies and spelling
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/pyright --pythonpath $(BIN)/python | { grep -v '^0 errors' || true; }
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	$(BIN)/deptry --no-ansi src 2>&1 | { grep -v '^\(Scanning\|Success\)' || true; }
	$(BIN)/codespell

fix: $(VENV)/.ready-check ## Repair what can be repaired by itself: format, imports, simple lint
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .
	$(BIN)/codespell --write-changes

bench: $(VENV)/.ready-run ## Measure against the floors, and print one table
	@$(BIN)/python -m benchmarks $(ARGS)

requirements: ## (after a change of dependencies in pyproject.toml; needs uv)
	rm -f requirements/*.txt
	for set in "run" "test --group test" "check --group check"; do \
	    read -r name groups <<<"$$set"; \
	    uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
	        pyproject.toml --all-extras --group build $$groups --output-file "requirements/$$name.txt" >/dev/null; \
	done

clean: ## (forget the environment and all caches)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* dist

# -- setting up: a stamp a set of requirements, made anew when they change. Hashes are always checked.

$(VENV)/.ready-%: requirements/%.txt pyproject.toml .ci/venv
	@.ci/venv "$(VENV)" "$*"
	@touch $@
