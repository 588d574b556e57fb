# The tests' environment is made once and again when a lock file changes; everything else is a command you could type.
PYTHON ?= python3
DEV := .venvs/dev
PY := $(DEV)/bin/python
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-deps
STAMP := $(DEV)/levelfield-locks.sha256
WITH_TORCH := $(DEV)/levelfield-torch.sha256
NEW := not thorough
PYTEST := $(PY) -m pytest
IN_MEMORY := tests/in_memory $(PYTEST)

# pip compiles nothing ahead: most of a framework is never imported. (0 is pip's own, inverted way to say so.) Python
# keeps what it compiles on first use, whatever the caller's environment says.
export PIP_NO_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE

# On a machine without network: a folder that `run_benchmarks.py environment wheels fetch` made on another one.
ifdef LEVELFIELD_WHEELS
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := $(abspath $(LEVELFIELD_WHEELS))
endif

# Threads that wait give their core to the other lanes. Without this they spin on it.
test thorough: export OMP_WAIT_POLICY := passive

# No run of a test or a benchmark goes into the store of the developer's own results.
export LEVELFIELD_STORE := none

.PHONY: test lock waiting installing quick lint environments framework-free each-framework on-the-engine on-machines end-to-end bench gpu-check rehearse matrix host-runs thorough drills clean

# Four lanes, for two cores. One computes: the tests without a framework, on three processes. Each process reads all tests,
# so more cost more; one that has no test left takes some of another, so that no test that waits is the last. Whole runs and
# the container engine mostly wait: they are the second. The engine's tests come last: what ends a rank by a signal must not
# run beside a container that runs out of memory. The third installs packages, then tests each framework in its environment.
# The fourth runs on several machines, mostly waits, too, and is the shortest: it makes the first starts at its end.
test: $(STAMP)
	$(MAKE) --no-print-directory -j 4 framework-free waiting installing on-machines

waiting: $(WITH_TORCH)
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory end-to-end
	$(MAKE) --no-print-directory on-the-engine

installing: $(WITH_TORCH)
	$(MAKE) --no-print-directory environments
	$(MAKE) --no-print-directory each-framework

each-framework: $(WITH_TORCH)
	$(IN_MEMORY) -n 2 -m "$(NEW)" tests/models tests/gpu

on-the-engine: $(STAMP)
	$(PYTEST) -m "containers and $(NEW)" tests/containers

on-machines: $(STAMP)
	$(PYTEST) -m "machines and $(NEW)" tests/machines
	$(PY) tools/first_starts.py

end-to-end: $(STAMP)
	$(IN_MEMORY) -n 4 --dist loadfile -m "e2e and $(NEW)" tests/e2e

framework-free: $(STAMP)
	$(IN_MEMORY) -n 3 --dist worksteal -m "not e2e and not containers and not machines and $(NEW)" --ignore=tests/models --ignore=tests/gpu --ignore=tests/e2e --ignore=tests/machines tests/vendors tests

environments: $(STAMP)
	$(PY) tools/environments.py

# What make test leaves out: further runs of the same kinds. .github/workflows/weekly.yml runs it.
thorough: $(WITH_TORCH)
	$(PYTEST) -n 2 -m "thorough and not containers and not machines"
	$(PYTEST) -m "thorough and containers" tests/containers
	$(PYTEST) -m "thorough and machines" tests/machines
	$(PY) tools/first_starts.py --all
	LEVELFIELD_FUZZ=60 $(PYTEST) -n 2 tests/core/fuzz tests/core/store/test_damaged_rows.py

# What needs no framework, without the files of tests/slow_files, whose tests take a third of a second or more each.
quick: $(STAMP)
	$(PYTEST) -n 4 --dist worksteal -m "$(NEW)" $(addprefix --ignore=,$(shell cat tests/slow_files)) tests/vendors tests/core

# mypy's strict rules, as far as frameworks without types allow them: every function of such a folder has annotations. The
# first run takes a minute; the others use what it found of torch. A run for each framework, as their modules share names.
lint: OPTIONS := .mypy_cache/options.ini
lint: MYPY := $(PY) -m mypy --config-file $(OPTIONS)
lint: TRAININGS = $(basename $(notdir $(wildcard models/*/*.py))) $(addsuffix .*,$(notdir $(patsubst %/,%,$(dir $(wildcard models/*/*/*.py)))))
lint: TEST_FOLDERS = $(sort $(dir $(wildcard tests/*.py tests/*/*.py tests/*/*/*.py)))
lint: $(WITH_TORCH)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	mkdir -p .mypy_cache
	{ cat tools/tests.mypy.ini; echo "[mypy-$$(echo '$(sort $(TRAININGS))' | tr ' ' ,)]"; echo 'warn_return_any = true'; } > $(OPTIONS)
	MYPYPATH=platform:tools:benchmarks/loops:benchmarks:models/torch:$$(echo $(TEST_FOLDERS) | tr ' ' :) $(MYPY) platform/levelfield vendors models/torch tests tools benchmarks
	MYPYPATH=platform:models/deepspeed:models/torch $(MYPY) models/deepspeed
	MYPYPATH=platform:models/megatron:models/torch $(MYPY) models/megatron
	MYPYPATH=platform:models/jax:benchmarks/loops:benchmarks $(MYPY) models/jax benchmarks/jax_loop.py
	MYPYPATH=platform:models/paddle $(MYPY) models/paddle
	MYPYPATH=platform:models/oneflow $(MYPY) models/oneflow
	$(DEV)/bin/lint-imports --no-logo
	pages=$$(mktemp -d) && { $(PY) -m mkdocs build --strict --site-dir "$$pages"; end=$$?; rm -rf "$$pages"; exit $$end; }

# The ends that users meet on a bad day, ten times in a row while every core is busy: about twenty minutes.
drills: $(STAMP)
	$(PY) tools/drills.py

# Every benchmark, one after another; each prints ratios from one run.
bench: $(WITH_TORCH)
	$(PY) benchmarks/all.py

# Every framework in every layout, to models/*/tested.json and docs/frameworks.md: about half an hour on two cores.
matrix: $(STAMP)
	$(PY) tools/matrix.py

# What predictions of runs on a processor are held to: a quarter of an hour on a machine that does nothing else.
host-runs: $(STAMP)
	$(PY) tools/host_runs.py

# The code of accelerators at full scale on pretended devices, into docs/verified/rehearsed.json: a minute or two for each
# plan. It needs gcc, and a Python with the CUDA build of torch: LEVELFIELD_CUDA_PYTHON (tools/rehearsal/README.md).
rehearse: $(STAMP)
	$(PY) tools/rehearse_all.py $(ARGS)

# On a machine with accelerators: what only a chip can show, within 40 minutes, written to gpu-check/. docs/first-hour.md
# explains it. Options go into ARGS, such as ARGS=--list. The caller's PYTHONPATH holds packages that were carried there.
gpu-check:
	$(PYTHON) tools/gpu_check.py $(ARGS)

# The environment has two parts: the platform, its tests and lint; and torch, for the tests of models (1 GB).
$(STAMP): requirements-dev.lock
	$(PYTHON) -m venv --clear $(DEV)
	$(INSTALL) -r requirements-dev.lock
	$(INSTALL) --no-build-isolation --editable .
	sha256sum $< > $@

$(WITH_TORCH): requirements-torch.lock $(STAMP)
	$(INSTALL) -r requirements-torch.lock
	sha256sum $< > $@

# Writes the lock files anew from pyproject.toml; pins stay where they still fit. ARGS=--upgrade takes the newest.
# Packages that others ask for and that nothing here imports are left out. torch has no hashes: an index may have its own
# build, for processors or another CUDA.
LOCK := .venvs/lock/bin/uv pip compile --quiet --universal --no-annotate --custom-compile-command "make lock" $(ARGS)
lock: WINDOWS := colorama pywin32
lock: CUDA := cuda-bindings cuda-toolkit nvidia-cublas nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
	nvidia-nvshmem-cu13 triton
lock:
	$(PYTHON) -m venv .venvs/lock
	.venvs/lock/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	printf '%s\n' $(WINDOWS) huggingface-hub greenlet | $(LOCK) --excludes /dev/stdin --generate-hashes \
		--python-version 3.10 pyproject.toml --output-file requirements.lock
	printf '%s\n' $(WINDOWS) huggingface-hub | $(LOCK) --excludes /dev/stdin --generate-hashes --python-version 3.11 \
		--constraints requirements.lock --extra test --extra lint pyproject.toml --output-file requirements-dev.lock
	printf '%s\n' $(WINDOWS) $(CUDA) httpx2-jsfetch | $(LOCK) --excludes /dev/stdin --python-version 3.11 \
		--constraints requirements-dev.lock --extra torch pyproject.toml --output-file requirements-torch.lock

clean:
	rm -rf .venv .venvs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
