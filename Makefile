# The tests' environment is made once and again when a lock file changes; everything else is a command you could type.
PYTHON ?= python3
DEV := .venvs/dev
PY := $(DEV)/bin/python
STAMP := $(DEV)/levelfield-locks.sha256
QUICK := not e2e and not containers and not thorough

.PHONY: test quick lint bench gpu-check matrix host-runs thorough clean

test: lint
	PYTHONPATH=platform $(PY) -m pytest -n 4 -m "$(QUICK)" --ignore=tests/models
	PYTHONPATH=platform $(PY) -m pytest -n 2 --dist loadgroup -m "$(QUICK)" tests/models  # each of several ranks: more would only wait
	PYTHONPATH=platform $(PY) -m pytest -m "(e2e or containers) and not thorough"  # these use all cores: one by one

# What make test leaves out: further runs of the same kinds.
thorough: $(STAMP)
	PYTHONPATH=platform $(PY) -m pytest -n 2 -m thorough

quick: $(STAMP)
	PYTHONPATH=platform $(PY) -m pytest -n 2 tests/core tests/vendors

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	MYPYPATH=platform $(PY) -m mypy -p levelfield
	MYPYPATH=platform $(PY) -m mypy vendors/cpu/adapter.py
	MYPYPATH=platform $(PY) -m mypy vendors/nvidia/adapter.py
	PYTHONPATH=platform $(DEV)/bin/lint-imports --no-logo

# Every benchmark, one after another; each prints ratios from one run.
bench: $(STAMP)
	PYTHONPATH=platform $(PY) benchmarks/all.py

# Every framework in every layout, to models/*/tested.json and docs/frameworks.md: about half an hour on two cores.
matrix: $(STAMP)
	PYTHONPATH=platform $(PY) tests/models/matrix.py

# What predictions of runs on a processor are held to: a quarter of an hour on a machine that does nothing else.
host-runs: $(STAMP)
	PYTHONPATH=platform $(PY) tests/models/host_runs.py

# On a machine with an accelerator: what only a chip can show, written to gpu-check/.
gpu-check:
	PYTHONPATH=platform $(PYTHON) tests/gpu/check.py

$(STAMP): requirements.lock requirements-dev.lock
	$(PYTHON) -m venv --clear $(DEV)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock -r requirements-dev.lock
	cat $^ | sha256sum > $@

clean:
	rm -rf .venv .venvs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
