# Two commands: `make train` and `make test`. Both set up .venv first, from pinned versions, once.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test test-fast check bench faults words clean

train: .venv/ready
	$(BIN)/glass train quickstart

# Half as many again as there are cores: some tests wait for processes that they start.
WORKERS := $(shell echo $$(( 3 * $$(getconf _NPROCESSORS_ONLN) / 2 )))

test: .venv/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# While writing: no other processes, no generated examples.
test-fast: .venv/ready
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --fast -m "not hypothesis"

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# torch comes first and alone: pinned without a local label, a CPU or CUDA build that is at hand is taken,
# and nothing that follows replaces it. Python compiles what is imported when it is: of these packages, little is.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "GlassGPT needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "Python's venv module is missing. On Debian or Ubuntu: sudo apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The CPU rows side by side with nanoGPT, which is not part of this; bench/gpu.sh has those of a GPU.
#   make bench NANOGPT=path/to/nanoGPT SHAKESPEARE=tinyshakespeare.txt
bench: .venv/ready
	$(BIN)/python -m bench cpu-speed cpu-to-loss --again \
		--nanogpt $(NANOGPT) --shakespeare $(SHAKESPEARE) --out runs/bench.jsonl

# kill -9 at 1000 instants of training, evaluating and saving, half of them at system calls; then every file
# system call fails in turn, once and for good. Must lose nothing.
faults: .venv/ready
	$(BIN)/python tests/faults/campaign.py --kills=1000 --jobs=2 --io-errors=all

# The message catalogues: keys of the code in, gone ones out, stale translations marked, then compiled.
words: .venv/ready
	$(BIN)/python glassgpt/locale/update.py

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
