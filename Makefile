# `make demo` and `make test` set everything up: a .venv, the install, the run.
# There is no `clean` for build/: that folder is source.

PYTHON ?= python3
BIN := .venv/bin

# Where torch, the engines and Triton share few cores, spinning OpenMP threads cost more than they gain.
export OMP_WAIT_POLICY := PASSIVE
export KMP_BLOCKTIME := 0

.PHONY: demo test browser-test lint install

demo: install
	$(BIN)/trtspec demo

test: install
	$(BIN)/python -m pytest

# Opens the HTML reports in headless Chromium, which has to be on the PATH.
browser-test: install
	$(BIN)/python -m pytest -m browser tests/test_browser.py

# mypy reads an installed copy: that is what users type-check against.
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf .typecheck
	$(BIN)/pip install --quiet --no-deps --target .typecheck .
	cd .typecheck && MYPYPATH=. ../$(BIN)/mypy --config-file ../pyproject.toml --python-executable ../$(BIN)/python -p trtspec

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench,build,local,test]'
	touch $@
