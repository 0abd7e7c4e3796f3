# Everything runs from a virtual environment that the first command makes.
PYTHON ?= python3
MODEL ?=
ARGS ?=
# Files of tests that run at the same time, in their order: the long ones, which start clusters, have
# few tests and would come last otherwise.
TEST_PROCESSES ?= 2
BIN := .venv/bin

.PHONY: serve test docs docs-links chaos laws fuzz attacks clients lint format bench constraints clean

serve: .venv/installed
	$(BIN)/tandem serve $(MODEL) $(ARGS)

test: .venv/installed-test
	.ci/servers
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

# The pages and a reference out of the code, as a site in docs/_build/html; a warning, a link that
# leads nowhere or anything that it would load from a network fails.
docs: .venv/installed-test
	$(BIN)/python -m docs.site

# The pages of others that ours lead to are there. It asks the network.
docs-links: .venv/installed-test
	$(BIN)/python -m docs.site --links

chaos: .venv/installed-test
	.ci/servers
	$(BIN)/python -m tests.chaos $(ARGS)

# The laws that are tried with seeds, with all of them.
laws: .venv/installed-test
	TANDEM_SEEDS=all $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal \
		tests/cluster tests/engine tests/twin tests/journeys/test_every_door.py $(ARGS)

# Against a server of the bundled model: make fuzz ARGS="--minutes 1 --seed 7".
fuzz: .venv/installed-test
	$(BIN)/python -m tests.fuzz $(ARGS)

# What attacks cost a real server: make attacks ARGS="--against CHECKOUT --only heads,memory".
attacks: .venv/installed-test
	$(BIN)/python -m tests.attacks $(ARGS)

# Clients that others wrote, in environments of their own, and docs/clients.md out of what they find:
# make clients ARGS="--only openai,llm --server".
clients: .venv/installed-test
	$(BIN)/python -m tests.clients $(ARGS)

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src
	$(BIN)/mypy bench
	$(BIN)/mypy training
	$(BIN)/mypy -p docs.site

format: .venv/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed-test
	$(BIN)/python bench/engine.py $(ARGS)

# The newest of everything, and what it is and may be used under; `make test` says whether it works.
constraints: .venv/installed-test
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		--editable '.[test,lint,docs]'
	$(BIN)/python -m tests.supply

# torch comes by the range in pyproject.toml: pip takes the build that suits the machine (CUDA
# where the registry offers it, the CPU build where only that is there). Nothing is newer than what
# the tests ran on.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[client,bench]'
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[test,lint,docs]'
	touch $@

clean:
	rm -rf docs/_build .venv .clients .mypy_cache .pytest_cache .ruff_cache .hypothesis results
