PYTHON ?= python3
LAUNCHES ?= data/llama-3-8b-2-layers
INPUT_LEN ?= 1024
OUTPUT_LEN ?= 256

# Everything runs in .venv, whatever other environment is active.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH JUPYTER_PATH MPLBACKEND PIP_PREFIX PIP_TARGET PIP_USER
# Each kernel would compile its imports anew, for seconds.
unexport PYTHONDONTWRITEBYTECODE
# All text is UTF-8, whatever the locale.
export PYTHONUTF8 = 1

BIN = .venv/bin
READY = .venv/ready
VLLM_READY = .venv-vllm/ready

.PHONY: help setup report test lint test-vllm lab notebooks benchmark lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv from requirements.lock (the others do it when needed; PYTHON=python3)

report: $(READY) ## write a report to reports/ (LAUNCHES=data/NAME INPUT_LEN=1024 OUTPUT_LEN=256)
	$(BIN)/vllm-tuning report "$(LAUNCHES)" --input-len $(INPUT_LEN) --output-len $(OUTPUT_LEN) -o reports

test: $(READY) ## run the tests (ARGS='-k wheel' for some of them)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

lint: $(READY) ## check layout, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test-vllm: $(READY) $(VLLM_READY) ## test with the real vLLM 0.32 on the CPU: heavy, see tests/vllm/README.md
	VLLM_TUNING_VLLM="$(CURDIR)/.venv-vllm" $(BIN)/python -m pytest tests/vllm $(ARGS)

lab: $(READY) ## open the explorer in JupyterLab
	$(BIN)/jupyter-lab $(firstword $(wildcard notebooks/02_explorer.ipynb) notebooks) $(ARGS)

notebooks: $(READY) ## run the teaching notebooks again, in place
	$(BIN)/python notebooks/execute.py $(sort $(wildcard notebooks/[0-9]*.ipynb))

benchmark: $(READY) ## run tests/benchmarks/bench_*.py
	@set -e; for bench in $(sort $(wildcard tests/benchmarks/bench_*.py)); do \
		echo "$$bench"; $(BIN)/python "$$bench"; done

lock: $(READY) ## make requirements.lock from pyproject.toml (ARGS=--upgrade for newer releases)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
		--no-header --no-annotate --no-emit-index-url \
		--extra test --group setup --output-file requirements.lock $(ARGS) pyproject.toml

clean: ## remove .venv, builds and caches
	rm -rf .venv .venv-vllm build dist .pytest_cache .hypothesis
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# An environment holds its own path, so a moved checkout needs a new one.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

# The ready file is written last, so that an interrupted set-up starts over.
# uv comes from the lock too: no package is taken without its hash.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed; $(PYTHON) is not. Try: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up .venv (about a minute, once)"
	@$(PYTHON) -m venv --clear .venv
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r .venv/uv.txt
	@$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --no-build --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps --editable .
	@echo "$(CURDIR)" > $(READY)

$(VLLM_READY): tests/vllm/requirements.txt
	@echo "Setting up .venv-vllm (about 1 GB, once)"
	@$(PYTHON) -m venv --clear .venv-vllm
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $(VLLM_READY)
