# Commands for a fresh machine, all in .venv:
#
#   make demo   GRPO with real vLLM on CPU, in all four modes, reporting to MLflow, W&B (offline) and TensorBoard
#   make test   everything that is checked: lint, types, tests, trackers, vLLM, the wheel, other versions, browser
#   make bench  what it costs, against what others do with the same tensors; PARTS="observe --short" for a part of it
#
# On Linux, pip needs an index with torch's CPU build. If yours is not configured already, set PIP_EXTRA_INDEX_URL to
# PyTorch's CPU wheel index, named on pytorch.org/get-started/locally.

PYTHON ?= python3
VENV ?= .venv
STEPS ?= 5
PARTS ?=
MODES := token_truncate token_mask sequence_truncate sequence_mask

READY := $(VENV)/.ready

.PHONY: help setup demo test bench lint unit format clean

help:
	@sed -n 's/^#   make/  make/p' Makefile

setup: $(READY)

$(READY): pyproject.toml requirements/demo-cpu.txt scripts/setup.sh
	PYTHON="$(PYTHON)" bash scripts/setup.sh "$(VENV)"

demo: $(READY)
	@[ "$$(uname -s)" = Linux ] || { echo "error: vLLM's CPU build exists for Linux only; run this there"; exit 1; }
	@set -e; for mode in $(MODES); do \
	    echo; echo "== $$mode"; \
	    $(VENV)/bin/python examples/grpo_vllm.py --mode $$mode --steps $(STEPS) --output-dir demo; \
	done
	@echo; echo "Four runs, side by side (experiment and project: ratioscope):"
	@echo "  a page       $(VENV)/bin/ratioscope compare $(MODES:%=demo/%) -o demo/compare.html"
	@echo "  MLflow       $(VENV)/bin/ratioscope panels mlflow --experiment ratioscope --tracking-uri sqlite:///demo/mlflow.db"
	@echo "               and then the command that it prints"
	@echo "  TensorBoard  $(VENV)/bin/tensorboard --logdir demo/tensorboard"
	@echo "  W&B          demo/wandb, kept offline; to upload: $(VENV)/bin/wandb sync demo/wandb/offline-run-*"
	@echo "Look for sampling/raw_importance_sampling_ratio, sampling/frac_modified_importance_sampling_ratio, ratioscope/."

test: $(READY)
	$(VENV)/bin/python scripts/check.py

# In the environment that has verl and polgrad too.
bench: $(READY)
	python=$$($(VENV)/bin/python scripts/layers.py verl) && "$$python" -m benchmarks $(PARTS)

lint: $(READY)
	$(VENV)/bin/python scripts/check.py lint

unit: $(READY)
	$(VENV)/bin/python scripts/check.py unit

format: $(READY)
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

clean:
	rm -rf demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
