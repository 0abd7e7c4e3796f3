# Everything runs from a virtual environment that the first command makes.
PYTHON ?= python3
MODEL ?=
ARGS ?=
# Files of tests that run at the same time: most of them wait for processes most of the time.
TEST_PROCESSES ?= 2
BIN := .venv/bin

.PHONY: serve test chaos lint format bench clean

serve: .venv/installed
	$(BIN)/tandem serve $(MODEL) $(ARGS)

test: .venv/installed-test
	.ci/servers
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile $(ARGS)

chaos: .venv/installed-test
	.ci/servers
	$(BIN)/python -m tests.chaos $(ARGS)

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src
	$(BIN)/mypy bench
	$(BIN)/mypy training

format: .venv/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed-test
	$(BIN)/python bench/engine.py $(ARGS)

# torch comes by the range in pyproject.toml: pip takes the build that suits the machine (CUDA
# where the registry offers it, the CPU build where only that is there).
.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis results
