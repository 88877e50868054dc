# `make demo` and `make test` each do the whole set-up in .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-slow test-all hunt lint docs hashes clean

demo: $(READY)
	$(BIN)/giveaway demo

# one thread a process: pytest runs as many processes as there are cores; a file stays in one, which sets it up once.
# Compiled files are kept, whatever the caller's shell says: every command that a test starts would compile all again
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

test: $(READY)
	$(PYTEST) -m "not slow"

test-slow: $(READY)
	$(PYTEST) -m slow

test-all: $(READY)
	$(PYTEST)

# looks for new counterexamples instead of repeating the known examples; then attacks every promise by random cases, among
# them 100,000 heads: hours on one core, for a night
hunt: $(READY)
	@echo "make hunt takes hours: property tests with many examples, then 100,000 random heads and the other attacks"
	HYPOTHESIS_PROFILE=hunt OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.hunt

docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# HASHES=required installs only files whose sha256 .ci/requirements.txt names (Linux x86_64, torch for CPUs), as CI does
INSTALL := $(BIN)/python -m pip install --quiet

$(READY): pyproject.toml constraints.txt .ci/requirements.txt
	$(PYTHON) -m venv .venv
ifeq ($(HASHES),required)
	$(INSTALL) --require-hashes --requirement .ci/requirements.txt
	$(INSTALL) --no-deps --no-build-isolation --editable .
else
	$(INSTALL) --constraint constraints.txt torch
	$(INSTALL) --constraint constraints.txt --editable '.[dev]'
endif
	touch $(READY)

# after every change of constraints.txt, where pip finds a CPU wheel of torch
hashes: $(READY)
	$(BIN)/python .ci/hashes.py

clean:
	rm -rf .venv giveaway-demo
