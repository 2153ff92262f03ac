# What one can do here. Everything sets itself up: python3 (with venv), git and make are enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(or $(shell command -v uv),$(BIN)/uv)
DISTS  := core $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
READY  := $(VENV)/.ready

# Compiled once: the tests start the command a thousand times, and an environment may forbid Python to keep that.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test lint bench docs schema clean
help:    ## show this list
	@sed -n 's/^\([a-z]*\):.*##/\1\t/p' Makefile

$(READY): pyproject.toml constraints.txt $(DISTS:%=%/pyproject.toml) Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x "$(UV)" || $(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --group dev $(DISTS:%=--editable %)
	touch $@

setup: $(READY)  ## make .venv with every dist, editable, and the dev tools

demo: setup      ## run the main job: four workers, preempted once, finished
	$(BIN)/tpux run examples/quickstart.yaml

lint: setup      ## ruff, mypy strict, and the layers of the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(DISTS:%=%/src) benchmarks
	$(BIN)/lint-imports

test: setup      ## all tests, and those of core on every other Python that is here
	scripts/test-deps.sh
	$(BIN)/python -m pytest -n 2 --dist loadgroup
	scripts/test-versions.sh $(UV)

bench: setup     ## measure, and write docs/benchmarks.md
	$(BIN)/python -m benchmarks

docs: schema     ## write docs/events.md, and the schema
	$(BIN)/python scripts/events_docs.py > docs/events.md

schema: setup    ## write docs/tpux.schema.json, which the examples' modelines name
	$(BIN)/tpux config schema > docs/tpux.schema.json

clean:           ## remove what setup made
	rm -rf $(VENV) .cache
