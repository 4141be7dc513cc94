# Two commands set everything up on a machine with Python >= 3.11 and make:
#   make demo   runs the main job      make test   passes the tests
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
# The tests of rng.torch and pipeline.torch need torch, and its kernels' tests Triton, which run without a
# GPU. `make test TORCH=` does without both: those tests are skipped.
TORCH ?= torch==2.13.0
TRITON ?= $(if $(TORCH),triton==3.7.1)

.PHONY: demo test test-long test-integrations lint bench bench-peers bench-report bench-scale gpu-check clean

$(STAMP): pyproject.toml setup.py pipeline/datasets/region.c
	$(PYTHON) -c "import sys; sys.exit('samebatch needs Python 3.11 or newer, this is ' + sys.version.split()[0]) if sys.version_info < (3, 11) else None"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[demo,dev]"
	touch $(STAMP)

# torch comes alone: with others pip may take a build of it for GPUs, several GB.
$(STAMP)-tests: $(STAMP)
	$(if $(TORCH),$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH))
	$(if $(TRITON),$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TRITON))
	touch $@

demo: $(STAMP)
	$(BIN)/samebatch demo

test: $(STAMP)-tests
	$(BIN)/python -m pytest -m "not slow" -n 2

test-long: $(STAMP)-tests
	$(BIN)/python -m pytest -n 2

# Against the real trainers and JAX, on the processor, in an environment of their own. torch comes first
# and alone: its build for processors where pip finds one, before others ask for any torch.
INTEGRATIONS ?= .venv-integrations
test-integrations: $(INTEGRATIONS)/.installed
	$(INTEGRATIONS)/bin/python -m pytest tests/integrations -n 2

$(INTEGRATIONS)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(INTEGRATIONS)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[demo,dev,integrations]"
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/samebatch bench

# Peers beside ours, each in its own environment: about 20 minutes, resumable. BENCH="--all" measures
# everything, BENCH="--peers torch,spdl" only these (see benchmarks/README.md).
BENCH ?=
bench-peers:
	$(PYTHON) benchmarks/run.py $(BENCH)
	$(PYTHON) benchmarks/report.py

bench-report:
	$(PYTHON) benchmarks/report.py

bench-scale: $(STAMP)
	PYTHONPATH=. $(BIN)/python benchmarks/scale.py

# On a machine with a CUDA device, with the python that has torch for it: make gpu-check PYTHON=...
# Elsewhere it says so and does nothing.
GPU ?=
gpu-check:
	PYTHONPATH=. $(PYTHON) benchmarks/gpu_check.py $(GPU)

clean:
	rm -rf $(VENV) $(INTEGRATIONS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
