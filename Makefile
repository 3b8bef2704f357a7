# Each of these works on a fresh clone: the virtual environment is made when it is needed, from exact versions,
# and made up to date when what is installed has changed. pip's own settings apply (PIP_INDEX_URL …).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
# Two for each of the two cores that CI has: tests wait for disks, locks and processes for 40 % of their time.
WORKERS ?= 4
bin := $(VENV)/bin
# As if it were activated: tests compile with its ninja.
export PATH := $(abspath $(bin)):$(PATH)
stamp := $(VENV)/.complete
# Tests start hundreds of interpreters, each of which would compile m5ws again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-services lint docs check bench mutations soak versions clean

help: ## Show what can be made.
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

venv: $(stamp) ## Make the virtual environment in .venv.

# The stamp is the last thing that is written: an installation that was cut short is done again, from nothing.
$(stamp): pyproject.toml constraints.txt hatch_build.py m5ws/training/fingerprint/kernel.c
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "m5ws needs Python 3.11 or newer: make PYTHON=…")'
	@echo "installing into $(VENV): some minutes, and 2 GB"
	$(PYTHON) -m venv $(if $(wildcard $(stamp)),,--clear) $(VENV)
	rm -f $(stamp)
	$(bin)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --upgrade pip
	$(bin)/python -m pip install --disable-pip-version-check --quiet --no-compile --constraint constraints.txt --editable '.[all,dev]'
	touch $@

demo: $(stamp) ## Train, reproduce and change a small GPT, start to end.
	PATH="$(abspath $(bin)):$$PATH" examples/demo.sh $(ARGS)

test: $(stamp) ## Run the tests that need no server, but for tests that take long.
	$(bin)/python -m pytest -n $(WORKERS) --durations=10 $(ARGS)

test-services: $(stamp) ## Run the tests that need servers, other programs, or long launches.
	$(bin)/python -m pytest -n $(WORKERS) --durations=10 -m "(services or long) and not soak" $(ARGS)

lint: $(stamp) ## Run ruff, mypy --strict, import-linter and the check of prose.
	$(bin)/ruff check .
	$(bin)/ruff format --check --quiet .
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/python .ci/prose.py

docs: $(stamp) ## Build the documentation site in build/docs, with its links checked.
	$(bin)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet -d build/doctrees docs build/docs

check: lint docs test test-services ## Run what CI runs.

bench: $(stamp) ## Run the benchmarks, which write their tables.
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(bin)/python "$$script"; done

mutations: $(stamp) ## Plant faults in a copy of the core, each of which the tests must find.
	$(bin)/python tests/run_mutations.py $(ARGS)

soak: $(stamp) ## Run the campaigns.
	$(bin)/python -m pytest -m soak $(ARGS)

versions: $(stamp) ## Run the main job and the tests with each row of versions in tests/versions.toml, or with ROWS="name name".
	$(bin)/python tests/run_versions.py --workers $(WORKERS) $(ARGS) $(ROWS)

clean: ## Remove what was made, but for demo directories.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
