# Every verb sets up what it needs in .venv by itself; the second time that costs nothing.
#
#   make demo ARGS="--kill"       what follows ARGS= goes to the program behind the verb
#   make test ARGS="-k fence" JOBS=0    in one process: with a debugger, say
#   make test PYTHON=python3.13 VENV=.venv-3.13

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

VENV ?= .venv
ARGS ?=
JOBS ?= auto
BIN := $(VENV)/bin

.PHONY: help demo test check fix bench races sim chaos model requirements

help: ## Show this list
	@bold= plain=; if [ -t 1 ] && [ -z "$${NO_COLOR-}" ]; then bold=$$(printf '\033[1m') plain=$$(printf '\033[0m'); fi; \
	awk -F ':.*## ' -v bold="$$bold" -v plain="$$plain" \
		'/^[a-z]+:.*## / { printf "  %smake %-6s%s %s\n", bold, $$1, plain, $$2 }' $(MAKEFILE_LIST)
	@printf '\n  ARGS="..." is handed on, as in: make demo ARGS="--kill" · make test ARGS="-k fence"\n'

demo: $(VENV)/.ready-run ## Run January 2013's flights through two workers, and check every plane
	@$(BIN)/python -m selaras demo $(ARGS)

test: $(VENV)/.ready-test ## Run the tests
	@$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

check: $(VENV)/.ready-check ## Check style, types, architecture, dependencies and spelling
	@step() { printf '  %-13s' "$$1"; shift; if out=$$("$$@" 2>&1); then echo ok; else echo FAILED; echo "$$out"; failed=1; fi; }
	failed=0
	step format $(BIN)/ruff format --check .
	step lint $(BIN)/ruff check .
	step mypy $(BIN)/mypy
	step pyright $(BIN)/pyright --pythonpath $(BIN)/python
	step architecture $(BIN)/lint-imports --no-logo
	step dependencies $(BIN)/deptry src
	step spelling $(BIN)/codespell
	exit $$failed

fix: $(VENV)/.ready-check ## Repair what can be repaired by itself: format, imports, simple lint, derived pages
	@$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .
	$(BIN)/codespell --write-changes || true
	$(BIN)/python docs/derive.py

bench: $(VENV)/.ready-run ## Measure against the floors, and print one table
	@$(BIN)/python -m benchmarks $(ARGS)

races: $(VENV)/.ready-run ## Count stale reads, naive cache-aside beside Selaras: SECONDS=40, SEED=4711, ARGS="--url redis"
	@$(BIN)/python -m benchmarks.races $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

sim: $(VENV)/.ready-run ## Search a simulated fleet for broken promises: SECONDS=60 or HOURS=8; SEED= for one world
	@$(BIN)/python -m simulation $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(HOURS),--hours $(HOURS)) $(ARGS)

chaos: $(VENV)/.ready-test ## Hurt real processes on real stores, and hold them to every promise: MINUTES=5 SEED= ARGS="redis --lossy"
	@$(BIN)/python -m chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

model: $(VENV)/.ready-model ## Search the models of the protocol to their ends, and take each rule out (needs Java)
	@$(BIN)/python spec/check.py $(ARGS)

# After a change of dependencies in pyproject.toml; needs uv. One set of versions for all files.
requirements:
	rm -f requirements/*.txt
	compile() { uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	    --python-version 3.11 pyproject.toml --group build "$$@" >/dev/null; }
	compile --all-extras --group check --output-file requirements/check.txt
	compile --all-extras --group test --constraints requirements/check.txt --output-file requirements/test.txt
	compile --extra uvloop --extra redis --constraints requirements/check.txt --output-file requirements/run.txt
	compile --group model --constraints requirements/check.txt --output-file requirements/model.txt

# -- setting up: a stamp a set of requirements, made anew when they change. Hashes are always checked.

$(VENV)/.ready-%: requirements/%.txt pyproject.toml .ci/venv
	@.ci/venv "$(VENV)" "$*"
	@touch $@
