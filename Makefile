# Development tasks. Each target runs `setup` first if needed; only python3 (with venv), git and make are required.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(or $(shell command -v uv),$(BIN)/uv)
DISTS  := core $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
READY  := $(VENV)/.ready
JAX_VENV ?= .cache/jax
PEERS  := tpunicorn2==1.0.2 tpuz==0.1.11

# Keep compiled bytecode even if the environment disables it: the tests start the command about a thousand times.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-all test-jax versions lint bench bench-peers soak mutants first-contact-check docs schema clean faults-real faults
help:    ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/\1\t/p' Makefile

$(READY): pyproject.toml constraints.txt $(DISTS:%=%/pyproject.toml) Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x "$(UV)" || $(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	@echo 'installing tpux, its plugins and the development tools into $(VENV), below $(CURDIR):'
	$(UV) pip install --compile-bytecode --python $(BIN)/python --constraint constraints.txt --group dev $(DISTS:%=--editable %)
	touch $@

setup: $(READY)  ## create .venv with all packages (editable) and the development tools

demo: setup      ## run examples/quickstart.yaml: four workers, preempted once, then finished
	$(BIN)/tpux run examples/quickstart.yaml

lint: setup      ## run ruff, mypy, import-linter and the limits of the structure
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(wildcard $(DISTS:%=%/src)) benchmarks $(wildcard examples/plugins/*/src)
	$(BIN)/lint-imports
	$(BIN)/python scripts/structure.py

test: setup      ## run the tests without the mark `system`
	scripts/test-deps.sh
	scripts/run-tests.sh $(BIN)/python -m "not system"
	scripts/test-versions.sh --quick $(UV) 3.11

test-all: setup  ## run the other tests, more examples of properties, and the tests of core on the oldest Python
	scripts/test-deps.sh
	HYPOTHESIS_PROFILE=many scripts/run-tests.sh $(BIN)/python -m "system or hypothesis"
	scripts/test-versions.sh $(UV) 3.11

test-jax: setup  ## install JAX for CPU, and run examples/jax on emulated workers, preempted twice, and a psum on Slurm
	test -x $(JAX_VENV)/bin/python || $(PYTHON) -m venv $(JAX_VENV)
	$(UV) pip install --quiet --python $(JAX_VENV)/bin/python --requirement examples/jax/requirements.txt
	rm -f .cache/test-jax.xml
	JAX_PYTHON=$(abspath $(JAX_VENV))/bin/python $(BIN)/python -m pytest -n 0 --junitxml .cache/test-jax.xml examples/jax plugins/slurm/tests/test_jax.py; \
	  code=$$?; $(BIN)/python -m tests.figures test-jax --junit .cache/test-jax.xml || exit 1; exit $$code

versions: setup  ## run the tests of core on every other installed Python
	scripts/test-versions.sh $(UV) 3.11 3.12 3.13 3.14

bench: setup     ## run the benchmarks and write docs/benchmarks.md
	$(BIN)/python -m benchmarks

bench-peers: setup  ## install tpunicorn2 and tpuz from PyPI, and measure them and tpux on the emulator (needs root and gcloud)
	for peer in $(PEERS); do \
	  $(UV) venv --quiet --allow-existing --python $(BIN)/python .cache/peers/$${peer%%==*} && \
	  $(UV) pip install --quiet --python .cache/peers/$${peer%%==*}/bin/python $$peer || exit 1; \
	done
	unshare --net sh -c 'ip link set lo up && exec $(BIN)/python -m benchmarks peers'

soak: setup      ## run many jobs on the emulator for hours of its clock, with faults (SOAK="--jobs 8 --rate 24" is a short form)
	$(BIN)/python -m tests.soak $(SOAK)

mutants: setup   ## change lines that matter, one at a time, and check that the tests catch it (not in CI)
	$(BIN)/python -m tests.mutants $(MUTANTS)

faults-real: setup  ## kill supervisors at each point of a job, and cut networks, for an hour; goes on where it was (FAULTS="--shard 1/4 --minutes 15")
	scripts/test-deps.sh
	TPUX_TEST_LONG_CUT=300 $(BIN)/python -m pytest -n 4 tests/faults/test_network.py
	$(BIN)/python -m tests.faults.real $(FAULTS)

faults: setup    ## simulate 10,000 lives of a job, a fault in each (FAULTS="--lives 500 --shard 1/4"); continues where it was
	$(BIN)/python -m tests.simulation $(FAULTS)

first-contact-check: setup  ## compare what scripts/first-contact.sh has recorded in DIR with the emulator (DIR=...)
	$(BIN)/python scripts/first_contact_check.py $(DIR)

docs: schema     ## generate docs/events.md, docs/plugins/reference*.md, directory.md and the schema
	$(BIN)/python scripts/events_docs.py > $(READY).new && mv $(READY).new docs/events.md
	$(BIN)/python scripts/plugin_reference.py docs/plugins
	$(BIN)/python scripts/monitor_picture.py docs/monitor.svg
	$(BIN)/python scripts/plugin_directory.py > $(READY).new && mv $(READY).new docs/plugins/directory.md
	$(BIN)/python -m tests.mutants --docs > $(READY).new && mv $(READY).new docs/reliability.md

schema: setup    ## generate docs/tpux.schema.json
	$(BIN)/tpux config schema > $(READY).new && mv $(READY).new docs/tpux.schema.json

clean:           ## remove .venv and .cache
	rm -rf $(VENV) .cache
