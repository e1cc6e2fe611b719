# The verbs of this repository; `make run` and `make test` need nothing but Python 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# clang-format looks at every device and host source; the list is made when it is used.
SOURCES = $(shell find src tests -name '*.cuh' -o -name '*.cu' -o -name '*.cpp' -o -name '*.h')

.PHONY: run test test-gpu fuzz lint format figures wheel clean

# With a GPU: measured. Without: compiled, verified in the emulator, and said so.
run: $(VENV)/.run
	mkdir -p out
	$(BIN)/flashsmith configs --space
	$(BIN)/flashsmith tune --budget 140s -o out/tune.html

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu"

# Minutes of damage of every kind, with a seed of its own that it prints; a slice is in `test`.
fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz/run.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(SOURCES)
	$(BIN)/codespell

# Formats, and writes the page that follows from the knobs.
format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES)
	$(BIN)/flashsmith configs --page > docs/configuration.md

# The README's picture and every table that follows from committed records.
figures: $(VENV)/.test
	$(BIN)/python benchmarks/figures.py

# The machine's own Python and packages: nothing is installed.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest tests -m gpu
	@if command -v compute-sanitizer > /dev/null; then \
		for tool in memcheck racecheck; do \
			PYTHONPATH=src compute-sanitizer --tool $$tool --error-exitcode 1 \
				$(PYTHON) -m flashsmith verify smoke --device cuda || exit 1; \
		done; \
	else \
		echo "compute-sanitizer is not installed: the smoke set was not run under it"; \
	fi

# With the kernels that the shipped measurements choose: their first call compiles nothing.
wheel: $(VENV)/.test
	$(BIN)/flashsmith build --shipped
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Installed again only when pyproject.toml changed; the package itself is editable.
$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[report]'
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@ $(VENV)/.run
