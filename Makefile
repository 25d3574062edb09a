# Headrace. `make help` lists the targets. Every target that needs the environment makes it first.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PROFILE ?= nano
SET ?=
BIN := $(abspath $(VENV))/bin
STAMP := $(abspath $(VENV))/.headrace-installed
BENCH_STAMP := $(STAMP)-bench
RUN := PATH="$(BIN):$$PATH" OMP_WAIT_POLICY=PASSIVE
TESTERS := -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help env demo repro test test-fast lint ui gpu-check clean distclean

help: ## list the targets
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):[^#]*## */\1\t/' | column -t -s "$$(printf '\t')"

env: $(STAMP) ## make the environment in $(VENV) (set VENV= to put it elsewhere, PYTHON= to choose the interpreter)
	@$(RUN) python -m data.recipes.stdlib

$(STAMP): requirements.txt requirements-nodeps.txt requirements-dev.txt requirements-dask.txt requirements-8bit.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); set PYTHON=" >&2; exit 2; }
	@command -v cc >/dev/null || { echo "a C compiler (cc) is needed for one dependency; install gcc or clang" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-nodeps.txt
	touch $@

$(BENCH_STAMP): requirements-bench.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-bench.txt
	touch $@

demo: env ## run the whole chain through the Prefect flow and print the results (PROFILE=nano SET="key=value ...")
	@$(RUN) python -m flows.pipeline --profile $(PROFILE) $(foreach pair,$(SET),--set $(pair))

repro: env ## the same chain without Prefect: dvc repro
	@$(RUN) dvc --wait-for-lock repro

test: env ## run the whole test suite
	@$(RUN) python -m pytest $(TESTERS)

test-fast: env ## the suite without the slow tests
	@$(RUN) python -m pytest $(TESTERS) -m "not slow"

lint: env ## ruff
	@$(RUN) ruff check .

ui: env ## MLflow UI and Prefect server on loopback; Ctrl-C stops both (ARGS="--mlflow-port 5001")
	@$(RUN) python -m infra.ui $(ARGS)

bench-%: env $(BENCH_STAMP) ## run tests/bench/NAME.py against its peer (ARGS=--quick for a short one)
	@$(RUN) python -m tests.bench.$* $(ARGS)

gpu-check: ## exercise the GPU paths of models/ on one CUDA device and write a JSON report
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu_check $(ARGS)

clean: ## remove everything the pipeline made, except DVC's cache and the tracker's runs
	rm -rf data/out data/work metrics .prefect

distclean: clean ## also DVC's cache, the tracker's runs and the environment
	rm -rf .dvc/cache .dvc/tmp mlflow.db* mlartifacts dvc.lock $(VENV)
