# Every target sets itself up: .venv in this folder, once, and again when pyproject.toml changes.
# Needed beforehand: Python 3.11 or newer with venv, g++ and make (Verilator compiles what it simulates).

PYTHON ?= python3
TORCH ?= torch==2.13.0  # or the path of a CPU wheel of that version
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup test verify crosscheck lint demo bench clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q "$(strip $(TORCH))"
	$(BIN)/pip install --disable-pip-version-check -q -e ".[dev]"
	@command -v sta >/dev/null || echo "OpenSTA ('sta', Debian package opensta) is not installed: slack will be ABC's estimate"
	touch $(READY)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# under 25 minutes on 2 cores
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --durations=20

# everything, the long simulations too
verify: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or not slow" --durations=25

# the cycle simulator against the RTL: whole contexts, other rows, lanes and banks (about an hour from cold)
crosscheck: setup
	$(BIN)/python -m pytest -m "slow or not slow" --durations=10 tests/cross/test_cycles.py

# under 5 minutes after set-up
demo: setup
	$(BIN)/python -m flow.demo

# the figures of nano-k3, measured again and recorded in results/
bench: setup
	$(BIN)/nanok3 generate "The " --tokens 254 --on rtl --config nano-k3 --json --record results/nano-k3.json
	$(BIN)/nanok3 synth --config nano-k3 --record results/nano-k3.json

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
