# `make help` lists what there is. Everything runs in .venv, which is made once, from uv.lock.
TASK ?= digits
PRESET ?= small
CLUSTER ?= local
ARGS ?=
DRY ?=
DETACH ?=
MINUTES ?= 8
OUT ?= results/own
FROM ?= reference
CONTINUE ?=

PYTHON ?= python3
PY := OMP_NUM_THREADS=1 .venv/bin/python
TESTS := $(PY) -m pytest --numprocesses=logical --dist=loadfile
SUITE := task=$(TASK) preset=$(PRESET) cluster=$(CLUSTER) results=$(OUT) $(if $(CONTINUE),from_reference=true) $(ARGS)

# Tables are read FROM=reference or FROM=own (which are in OUT). What is made of the reference's goes beside it, and git ignores it.
TABLES := $(if $(filter own,$(FROM)),$(OUT),results/$(FROM))
MADE := $(if $(filter own,$(FROM)),$(OUT),results/redrawn)

# What a task needs beyond the rest.
ATARI := $(basename $(notdir $(shell grep -l '^env_id:' configs/task/*.yaml)))
EXTRAS := experiments images text $(if $(filter $(TASK),$(ATARI)),atari) $(if $(filter $(TASK),mnist5k),mnist5k) $(if $(filter-out $(CLUSTER),local),cluster)
READY := .venv/.ready$(subst $() ,,$(patsubst %,-%,$(sort $(EXTRAS))))

.PHONY: help setup sweep status collect compare publish wandb-sync gpu gpu-wheels analyse figures report notebooks test test-slow lint clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo "  TASK=$(TASK) PRESET=smoke|small|paper CLUSTER=local|slurm|ray DRY=1 DETACH=1 CONTINUE=1 FROM=own OUT=folder ARGS='key=value ...'   tasks: $$(ls configs/task | sed -n 's/.yaml//p' | tr '\n' ' ')"

setup: $(READY) ## .venv with everything the task needs

$(READY): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "needs Python 3.11 or newer; name one with PYTHON=python3.12"; exit 2; }
	@test -x .venv/bin/uv || { echo "making .venv ..."; $(PYTHON) -m venv .venv && .venv/bin/python -m pip install -q uv; }
	@echo "installing into .venv: $(strip $(EXTRAS)) (the first time several minutes: PyTorch is 3 GB) ..."
	@.venv/bin/uv sync -q --frozen --inexact --compile-bytecode $(patsubst %,--extra %,$(EXTRAS))
	@touch $@

sweep: $(READY) ## train into OUT, fit, draw, print the verdict, compare with the reference; goes on where it stopped
	@$(PY) -m experiments.cli.$(if $(DETACH),detach,train) $(SUITE) $(if $(DRY),dry=true)

status: $(READY) ## done, running, failed, missing runs, and why they failed
	@$(PY) -m experiments.cli.status $(SUITE)

collect: $(READY) ## finished runs into the tables
	@$(PY) -m experiments.cli.collect $(SUITE)

compare: $(READY) ## does the sweep in OUT reproduce the reference?
	@$(PY) -m experiments.cli.compare $(SUITE)

publish: $(READY) ## its runs into the reference, whose fits, figures, report and notebooks are made again
	@$(PY) -m experiments.cli.publish $(SUITE)
	@$(PY) notebooks/execute.py

analyse: $(READY) ## fits and verdict, FROM=reference or own
	@$(PY) -m experiments.cli.analyse $(TABLES)/$(TASK)-$(PRESET)

figures: $(READY) ## every figure, FROM=reference or own
	@$(PY) -m experiments.cli.figures from=$(TABLES)

report: figures ## report.md and report.html with every figure, FROM=reference or own
	@$(PY) -m experiments.cli.report from=$(TABLES)

notebooks: $(READY) ## run the notebooks, FROM=reference or own
	@$(PY) notebooks/execute.py from=$(TABLES) into=$(MADE)/notebooks

wandb-sync: $(READY) ## finished offline runs to Weights & Biases; can be repeated
	@$(PY) -m experiments.cli.wandb_sync $(SUITE)

gpu: ## MINUTES=8 on a GPU: its tests, benchmarks, then what is missing of the paper's sizes, into OUT=results/own
	@scripts/gpu.sh $(MINUTES) $(OUT) $(ARGS)

gpu-wheels: $(READY) ## wheels/, for `make gpu` on a machine without network
	@scripts/gpu_wheels.sh

test: $(READY) ## the fast tests
	@$(TESTS) -m "not slow and not cuda"

test-slow: $(READY) ## the tests that take longer: whole sweeps, kills, coverage, real data
	@$(TESTS) -m "slow and not cuda"

lint: $(READY) ## format, lint and types
	@.venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/pyrefly check

clean: ## the environment and raw runs go; tables stay
	rm -rf .venv $(OUT)/runs outputs wandb
