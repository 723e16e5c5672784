# Two commands: `make run` and `make test`. Everything is installed into .venv and nowhere else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --build-constraint constraints.txt

# Compiled programs stay within the project, too.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/compiled

.PHONY: run test check format bench docs docs-serve notebook pictures lock clean

run: $(VENV)/.run
	$(BIN)/fedbc run fedbc fedavg --data synthetic --rounds 200 --epochs 5 --sample 10 --momentum 0.5 --dual-lr 0.001 --data-seed 2 --seed 1

test: check
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations 15  # some tests wait for real processes: one worker more than cores

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedbc needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pip

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[report]"
	@touch $@

$(VENV)/.test: $(VENV)/.run
	$(PIP) --group test
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	$(PIP) --group docs --group notebook
	@touch $@

# The documentation, as a site that opens from disk: site/index.html. No network is needed once .venv is there.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict
	@echo "open site/index.html"

docs-serve: $(VENV)/.docs
	$(BIN)/mkdocs serve --strict

# The paper's story with sliders, in the browser.
notebook: $(VENV)/.docs
	$(BIN)/marimo run notebooks/paper_story.py

# Draw the pictures of docs/concepts.md anew.
pictures: $(VENV)/.run
	$(BIN)/python tools/concept_pictures.py

# Against other simulators and the machine's limit; on a quiet machine, with FEDBC_DATA set for MNIST, CIFAR-10, Shakespeare.
bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.frameworks
	$(BIN)/python -m benchmarks.grid
	$(BIN)/python -m benchmarks.machines
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.machines_report

# Renew the pinned versions from what pip resolves today, under the limits of constraints.in; review the diff.
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade pip
	.venv-lock/bin/python -m pip install --quiet --constraint constraints.in --editable ".[report]" --group test hatchling==1.27.0 editables
	.venv-lock/bin/python -m pip freeze --all --exclude-editable --exclude setuptools | sed 's/+cpu$$//' > constraints.txt
	rm -rf .venv-lock

clean:
	rm -rf $(VENV) site .cache .venv-lock .pytest_cache .ruff_cache .mypy_cache .hypothesis
