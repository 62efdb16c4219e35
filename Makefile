# PIP_ARGS goes to every `pip install`, e.g. make run PIP_ARGS="--extra-index-url $CPU_INDEX"
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?= -n 2
RUN_ARGS ?=

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt $(PIP_ARGS)

.DEFAULT_GOAL := help
.PHONY: help run test lint format bench gpu-test gpu-bench gpu-audit nightly clean

help:
	@echo "make run     install into $(VENV) and stream a story from the embedded models"
	@echo "make test    install what the tests need, lint, type-check and run them all"
	@echo "make gpu-test the kernels on a CUDA device, with the torch of \$$(PYTHON): installs nothing"
	@echo "make lint    ruff and pyright only"
	@echo "make format  let ruff rewrite the sources"
	@echo "make bench   decode and op benchmarks; the last line of each is JSON"
	@echo "make gpu-bench  op benchmarks on a GPU, beside other libraries' figures; needs no install"
	@echo "make gpu-audit  planted layouts and large audits of every op on a GPU; needs no install"
	@echo "make nightly the auditor's own error rates, planted faults, the published bug, texts with and without drafts, parameters by rule and drafts"
	@echo "make clean   remove $(VENV) and caches"

run: $(VENV)/.installed
	@$(BIN)/fairdraft generate $(RUN_ARGS) </dev/null

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# needs torch, triton, numpy and pytest alone: the conftest of all tests asks for more
gpu-test:
	PYTHONPATH=src $(PYTHON) -m pytest -q -m gpu --confcutdir tests/ops/triton tests/ops/triton/test_gpu.py tests/ops/triton/test_gpu_processors.py tests/ops/triton/test_gpu_tree.py tests/ops/triton/test_gpu_lossy.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/python bench/decode.py
	$(BIN)/python bench/ops.py

gpu-bench:
	PYTHONPATH=src $(PYTHON) bench/gpu_ops.py

gpu-audit:
	PYTHONPATH=src $(PYTHON) bench/gpu_audit.py $(RUN_ARGS)

nightly: $(VENV)/.installed
	$(BIN)/python bench/nightly.py $(RUN_ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@echo "creating $(VENV) from $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "fairdraft needs Python 3.11 to 3.13; pass one with: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing fairdraft and its dependencies into $(VENV)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing what the tests need (Triton alone is about 1 GB)"
	@$(INSTALL) -e ".[test]"
	@touch $@
