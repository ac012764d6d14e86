# Everything is installed into this folder's own virtual environments; nothing outside it is touched.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The first supported Python that really starts: version managers leave names on PATH that do not.
PYTHON ?= $(shell for python in python3 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null \
	&& { echo $$python; exit; }; done; echo python3)

# Lines of the support matrix (env/lines.toml): the one of the whole stack, and those of `make test-lines`.
LINE := 0.31.0
LINES ?= 0.32.0 0.33.0
VENV := .venv
BIN := $(VENV)/bin
# The kernels' compiler and interpreter. Apart from the packages, because vLLM chooses its second model runner, which
# does not run on the CPU, where it can import Triton; the kernels' tests hand this folder to processes of their own.
TRITON := 3.9.0
# Further arguments for pytest, as in: make test ARGS="-k layout -x"
ARGS ?=
# Test files that run at once; 0 runs them one by one in pytest's own process, for a debugger or `-s`.
PROCESSES ?= 2
PYTEST_ARGS = -n $(PROCESSES) --dist loadfile $(ARGS)

# What the tests start must not see another checkout, the network, or more threads than this machine has.
unexport PYTHONPATH PYTHONHOME
TEST_ENV := PYTHONDONTWRITEBYTECODE= HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind
CHECKED := plugins recipes env tests benchmarks
STOCK_TESTS := $(wildcard tests/repository/test_*_stock.py tests/stockpatch/test_*_stock.py tests/vllm_cpu_dsa/test_*_stock.py \
	tests/vllm_blhnc/test_*_stock.py tests/flashinfer_nvfp4/test_*_stock.py \
	tests/dynamo_structural_tags/test_*_stock.py tests/mooncake_tier/test_*_stock.py tests/rl_capture/test_*_stock.py)

.PHONY: help env triton demo test test-lines check clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: ## install what is missing into .venv (line 0.31.0 of the support matrix)
	@$(PYTHON) env/setup_env.py --line $(LINE) --venv $(VENV)

triton: env
	@test -e $(VENV)/triton/triton-$(TRITON).dist-info/INSTALLER && exit 0
	echo "Triton $(TRITON) into $(VENV)/triton (1 GB), for the tests of the kernels"
	rm -rf $(VENV)/triton $(VENV)/triton.part
	$(BIN)/python -m pip install --no-input --disable-pip-version-check --quiet --progress-bar off --no-deps --no-compile \
	    --target $(VENV)/triton.part triton==$(TRITON)
	mv $(VENV)/triton.part $(VENV)/triton

demo: env ## run the whole stack on this machine with an agent session; report in build/demo.json
	@mkdir -p build
	@$(BIN)/glm53 agent-demo --deployment recipes/glm53-cpu.yaml --json build/demo.json

test: triton ## run all tests on line 0.31.0 (ARGS="-k name" narrows it, PROCESSES=0 runs one by one)
	@echo "pytest on line $(LINE): $(BIN)/python -m pytest $(PYTEST_ARGS)"
	@$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS)

test-lines: ## run the plugins' tests on the other vLLM lines (LINES="0.32.0 0.33.0")
	@test -n "$(STOCK_TESTS)" || { echo "no tests/*/test_*_stock.py to run" >&2; exit 1; }
	failed=
	for line in $(LINES); do
	    $(PYTHON) env/setup_env.py --line $$line --venv .venv-$$line
	    echo "pytest on line $$line: .venv-$$line/bin/python -m pytest <the plugins' stock tests> $(PYTEST_ARGS)"
	    $(TEST_ENV) .venv-$$line/bin/python -m pytest $(STOCK_TESTS) $(PYTEST_ARGS) || failed+=" $$line"
	done
	test -z "$$failed" || { echo "tests failed on:$$failed" >&2; exit 1; }

check: env ## lint, formatting and types
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CHECKED)

clean: ## remove build results and tool caches; the environments stay
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find benchmarks env plugins recipes tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## also remove the environments and what speeds up making them
	@rm -rf .venv .venv-* .cache

.ONESHELL:
