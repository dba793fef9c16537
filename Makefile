# `make` lists what there is to do. The environment in .venv is made on first use.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.stamp
# Folders that hold Python: mypy refuses one that is missing or empty.
CODE    = $(foreach dir,src tests bench examples,$(if $(shell find $(dir) -name '*.py' 2>/dev/null),$(dir)))

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The stamp is written last and names the interpreter and the folder it was made for. When it
# is missing (never made, or interrupted) or names another, the environment is made anew.
STALE := $(shell [ "$$(cat '$(STAMP)' 2>/dev/null)" = "$$($(PYTHON) -V 2>&1) in $(CURDIR)" ] || echo stale-venv)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test soak lint format bench lock clean stale-venv

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Another interpreter: make test PYTHON=python3.12 (and VENV=.venv-3.12 to keep both)"

demo: $(STAMP) ## run the demonstration
	@$(PY) -m examples.demo

test: $(STAMP) ## run the tests; ARGS="-k name -x" goes to pytest, -n0 is one process
	$(PY) -m pytest $(ARGS)

soak: $(STAMP) ## a campaign of faults against real sites; ARGS="--seed 7 --minutes 10", root for cuts
	$(PY) -m tests.soak $(ARGS)

lint: $(STAMP) ## check style, formatting and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(CODE)

format: $(STAMP) ## sort imports, mend what can be mended, format
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

bench: $(STAMP) ## run the benchmarks; ONLY=name picks one
	$(PY) -m bench $(ONLY)

# Existing pins stay unless asked: ARGS=--upgrade, or ARGS="--upgrade-package rich".
lock: ## write requirements.lock again from pyproject.toml; ARGS=--upgrade for newer versions
	@uv=$$(command -v uv) || { \
	    uv=.lock-venv/bin/uv; \
	    [ -x $$uv ] || { $(PYTHON) -m venv --clear .lock-venv && .lock-venv/bin/python -m pip install -qq uv; }; \
	} && $$uv pip compile pyproject.toml --extra dev --extra spark --universal --generate-hashes --quiet \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	    $(ARGS) -o requirements.lock

clean: ## remove the environment and everything generated
	rm -rf $(VENV) .lock-venv build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Removing the stamp first means that an interrupted run starts from nothing the next time.
# When only pyproject.toml is newer, the locked packages stay and Skerry is linked again.
$(STAMP): requirements.lock pyproject.toml $(STALE)
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	    echo "Skerry needs Python 3.11 or newer, and '$(PYTHON)' was not found."; \
	    echo "Install it, or name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
	    exit 1; } >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Skerry needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1)."; \
	    echo "Name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
	    exit 1; } >&2
	@rm -f $@
	@$(if $(filter-out pyproject.toml,$?),\
	    echo "Setting up $(VENV) with $$($(PYTHON) -V) (once; some minutes, 500 MB) ..." && \
	    $(PYTHON) -m venv --clear $(VENV) && \
	    $(PY) -m pip install -qq --require-hashes -r requirements.lock,\
	    echo "pyproject.toml changed: linking Skerry into $(VENV) again ...")
	@$(PY) -m pip install -qq --no-build-isolation --no-deps -e .
	@echo "$$($(PYTHON) -V 2>&1) in $(CURDIR)" > $@
