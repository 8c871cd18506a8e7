# One command for each thing a person does here; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
PYTHON ?= python3
BIN := .venv/bin
FAULT ?=
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup demo test lint format bench rules dashboards docs viewer mock lock wheel clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.installed viewer mock ## virtual environment, viewer bundle, mock NVML

.venv/.installed: pyproject.toml requirements/dev.lock requirements/uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"tailwatch needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}: set PYTHON=")'
	@echo "setup: Python packages into .venv"
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv .venv # pip comes last: what lacks it was cut short
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/uv.lock
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python requirements/dev.lock requirements/uv.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

demo: setup ## the whole stack with the demo service; FAULT=slow-preprocess injects a fault
	@$(BIN)/tailwatch demo $(if $(FAULT),--fault $(FAULT)) $(ARGS)

test: setup ## the test suite
	@scripts/test-prerequisites
	@$(BIN)/python -m pytest $(ARGS)

lint: viewer ## ruff, mypy, pyright (which needs the Node that the viewer is built with)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/pyright

format: .venv/.installed ## let ruff format
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: setup ## speed against peers, in one interleaved run (wants a quiet machine)
	@$(BIN)/python -m tests.bench $(ARGS)

rules: .venv/.installed ## render alert_rules/ from its templates and thresholds
	@$(BIN)/tailwatch rules build --output alert_rules
	@$(BIN)/tailwatch rules runbooks --pages runbooks

dashboards: .venv/.installed ## render dashboards/*.json
	@$(BIN)/python -m dashboards.build

docs: .venv/.installed ## write the reference's tables from the code
	@$(BIN)/python -m docs.build

viewer: stack/tailwatch_stack/viewer/dist/index.html ## build the viewer's bundle

stack/tailwatch_stack/viewer/dist/index.html: .venv/.installed $(shell find stack/tailwatch_stack/viewer/web -type f -not -path '*/node_modules/*' 2>/dev/null)
	@scripts/build-viewer

mock: demo/nvml_mock/build/libnvidia-ml.so.1 ## build the mock NVML library

demo/nvml_mock/build/libnvidia-ml.so.1: demo/nvml_mock/nvml_mock.c
	@mkdir -p $(@D)
	@$(CC) -O2 -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,$(@F) -o $@ $< -lpthread

lock: .venv/.installed ## resolve the dependencies anew
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --group dev --upgrade \
	  --no-header --no-annotate --no-emit-index-url -o requirements/dev.lock pyproject.toml

wheel: setup ## build the wheel, with the viewer in it
	@$(BIN)/uv build --quiet --wheel

clean: ## remove what was built here
	@rm -rf .venv build dist demo/nvml_mock/build stack/tailwatch_stack/viewer/dist stack/tailwatch_stack/viewer/web/node_modules
