# For people who work on pgsched. README's commands do not need it.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

help: ## Show this.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

dev: .venv/installed ## Make .venv with everything that development needs.

check: ## All that CI runs, in a fresh copy: tests on two servers, lint, types, imports, demo.
	.ci/run

test: dev ## Run the tests but those that are marked slow.
	$(BIN)/pytest -n 2 -m 'not slow'

chaos: dev ## A storm of five minutes over real processes.
	$(BIN)/python -m tests.chaos --minutes 5

lint: dev ## Lint, format, types, imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: dev ## Run all benchmarks, which takes its time, and draw the figures.
	$(BIN)/python -m benchmarks all --json build/figures
	$(BIN)/python -m benchmarks report build/figures --to build/report

.venv/installed: pyproject.toml setup.cfg
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[dev,embedded,bench]'
	touch $@

.PHONY: help dev check test chaos lint bench
