# `make help` lists the targets. Each makes .venv once (tools/setup_env.py) and is quick afterwards.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
MODEL_TRIED := .venv/.smollm2
PACKAGES := app backends quant kernels assets
LINKS := $(PACKAGES:%=.types/hearth/%)
# Only these are imported there: others need packages that such a machine may lack (tests/native/test_alone.py).
GPU_TESTS = $(shell grep -rl --include='test_*.py' 'pytest\.mark\.cuda' tests)
# These measure, or start processes that use all cores, so threads are not limited to one.
MEASURING := tests/bench tests/e2e
# Threads that wait leave the cores to the other process.
SIDE_BY_SIDE := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
BENCHMARKS := $(filter-out %_cuda.py,$(wildcard benchmarks/*.py))
# What `make gpu` does, in this order: each in less than eight minutes, all in less than 24.
PART ?= tests gemv attention end
GPU_RESULTS := build/gpu

.DEFAULT_GOAL := help
.PHONY: help chat test slow check serve bench clients gpu forms vocabularies setup pins clean again

help: ## this list
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 20

chat: SET_UP = --model
chat: $(READY) $(MODEL_TRIED) ## chat in the terminal, with SmolLM2 if it can be downloaded
	@$(BIN)/hearth

test: $(READY) ## the default test suite
	@OMP_NUM_THREADS=1 $(SIDE_BY_SIDE) $(MEASURING:%=--ignore=%)
	@$(SIDE_BY_SIDE) $(MEASURING)

slow: $(READY) ## the tests that take minutes
	@$(BIN)/python -m pytest -m slow

check: $(READY) $(LINKS) ## format, lint, types, import contracts
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_imports.py tests/test_layout.py

serve: $(READY) ## the OpenAI-style endpoint
	@$(BIN)/hearth serve

bench: $(READY) ## speed tables
	@set -e; for script in $(BENCHMARKS); do $(BIN)/python $$script; done

clients: $(READY) ## real clients against hearth serve; CLIENTS="codex aider" for some
	@$(BIN)/python tools/clients/run.py $(CLIENTS) $(if $(CLIENTS),,--results docs/results/$(shell date +%F)-clients.md)

# On a machine with an NVIDIA card and a torch of its own: nothing is installed, and the packages are found by their links.
gpu: export PYTHONPATH := .types:tools
gpu: $(LINKS) ## on an NVIDIA card, with PYTHON's own torch; PART=tests, gemv, attention or end for one
	@mkdir -p $(GPU_RESULTS)
	@set -e; for part in $(PART); do case $$part in \
	tests) OMP_NUM_THREADS=1 timeout 420 $(PYTHON) -m pytest -v -m cuda $$($(PYTHON) -c 'import xdist; print("-n auto --maxprocesses 14")' 2>/dev/null) --junitxml=$(GPU_RESULTS)/tests.xml $(GPU_TESTS);; \
	gemv) timeout 330 $(PYTHON) benchmarks/native_cuda.py $$part --seconds 270 --results $(GPU_RESULTS)/$$part.jsonl;; \
	attention) timeout 210 $(PYTHON) benchmarks/native_cuda.py $$part --seconds 150 --results $(GPU_RESULTS)/$$part.jsonl;; \
	end) timeout 475 $(PYTHON) benchmarks/native_cuda.py $$part --seconds 400 --results $(GPU_RESULTS)/$$part.jsonl;; \
	*) echo "PART=$$part is none of tests, gemv, attention and end." >&2; exit 2;; \
	esac; done

forms: $(READY) ## the bundled models as f32 and quantised files, in build/guide
	@$(BIN)/python tools/guide_forms.py

vocabularies: $(READY) ## llama.cpp's own, without which the tests of tokenizers and templates skip
	@$(BIN)/python tools/vocabularies.py

setup: ## make .venv again, after CMAKE_ARGS, CC or CFLAGS changed
	@$(PYTHON) tools/setup_env.py

pins: $(READY) ## write constraints.txt from what .venv holds
	@$(PYTHON) tools/pins.py

clean: ## remove everything that make made here
	rm -rf kernels/cpu/built .venv .types build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that was moved or copied from elsewhere does not work: the stamp names the folder it was made in.
ifneq ($(shell cat $(READY) 2>/dev/null),$(shell pwd -P))
$(READY): again
endif
$(READY): pyproject.toml setup.py constraints.txt $(wildcard kernels/cpu/*.[ch]) tools/setup_env.py tools/toolchain.py tools/torch_source.py
	@$(PYTHON) tools/setup_env.py $(SET_UP)

# Tried once: afterwards `hearth pull smollm2` is for the user to run.
$(MODEL_TRIED): | $(READY)
	@$(PYTHON) tools/setup_env.py --model-only

.types/hearth/%:
	@mkdir -p .types/hearth && ln -sfn ../../$* $@
