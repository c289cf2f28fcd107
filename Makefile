# Everything that is run here, by people and by machines. `make` alone lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Tests start some hundred processes. Where the environment forbids Python to keep compiled modules, each of them compiles numba,
# pandas and scikit-learn again: four seconds of a processor, where a daemon otherwise needs less than two to begin.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
SEEDS ?= 200
SEED ?=
PROFILE ?=
METHOD ?=
MODEL ?=
BENCH ?=
JOBS ?= 1000
EXTRAS := dev,align,deep,grpc,mqtt,onnx,ray,sql,web
TORCH := torch==2.13.0

VENV := .venv
PY := $(VENV)/bin/python
# Python compiles a module when it is first imported; most of what is installed never is.
PIP := PIP_ROOT_USER_ACTION=ignore $(PY) -m pip --disable-pip-version-check install --quiet --no-compile
TOGETHER = $(MAKE) --no-print-directory -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync)
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest --import-mode=importlib
CORE := $(VENV)/.core-installed
FULL := $(VENV)/.everything-installed
SITE := $(VENV)/.site-installed

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

# -- the two commands to begin with ------------------------------------------------------------------------------------

.PHONY: demo
demo: $(CORE)  ## train on four parties, one of them slow, and see asynchronous against synchronous (about a minute)
	@$(VENV)/bin/offbeat demo

.PHONY: test
test: ready  ## all checks and all tests that take seconds rather than minutes
	@echo "Checks and tests run two parts at a time; each part prints when it is done, after some minutes." >&2
	@$(TOGETHER) lint kernels
	@$(TOGETHER) units parties

# Tests with real processes mostly wait, the others compute: side by side, the second give way to the first.
.PHONY: units parties
units: $(FULL)
	nice -n 5 env $(PYTEST) -m "not slow" -n 2 --dist worksteal tests/unit tests/property tests/reference tests/simulation tests/attacks
parties: $(FULL)
	$(PYTEST) -m "not slow" -n 2 --dist worksteal tests/transport tests/browser

# Compiled once, before several processes at a time need them: our kernels (half a minute in a new checkout), and the tests
# with all that they import.
.PHONY: kernels
kernels: $(FULL)
	@$(PY) -c "import offbeat.learning.central_loops, offbeat.orgs.daemon"
	@$(PYTEST) --collect-only -qq tests >/dev/null

.PHONY: ready
ready: | $(PY)
	@$(MAKE) --silent -j2 $(FULL) packages

# -- setting up --------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(FULL)  ## a virtual environment with all extras but mlflow, and the development tools

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "offbeat needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@if ! $(PYTHON) -m venv $(VENV) >/dev/null 2>&1; then \
	  rm -rf $(VENV); \
	  $(call install_as_root,python3-venv); \
	  $(PYTHON) -m venv $(VENV); \
	fi

$(CORE): pyproject.toml | $(PY)
	@echo "Installing offbeat into $(VENV): a minute or two the first time." >&2
	@$(PIP) -e .
	@touch $@

$(FULL): pyproject.toml | $(PY)
	@echo "Installing offbeat with extras and tools into $(VENV): a few minutes the first time." >&2
	@$(PIP) "$(TORCH)" -e ".[$(EXTRAS)]"
	@touch $(CORE) $@

$(SITE): pyproject.toml | $(PY)
	@echo "Installing what builds the site into $(VENV)." >&2
	@$(PIP) -e ".[docs]"
	@touch $(CORE) $@

# A real broker and a real browser for the tests. Root gets them installed; others are told what is missing, and the
# tests that need them say that they were skipped.
.PHONY: packages
packages:
	@missing=""; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	PATH="$$PATH:/usr/sbin" command -v mosquitto >/dev/null || missing="$$missing mosquitto"; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ]; then $(call install_as_root,$$missing); \
	  else echo "Not installed:$$missing. The tests that need them are skipped; root can: apt-get install$$missing" >&2; fi; \
	fi

define install_as_root
{ if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
    echo "Please install $(1) first (on Debian, as root: apt-get install $(1))." >&2; exit 1; fi; \
  echo "Installing $(1) with apt-get." >&2; \
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1); } >/dev/null || \
  { echo "apt-get could not install $(1)." >&2; exit 1; }; }
endef

# -- parts of the tests ------------------------------------------------------------------------------------------------

.PHONY: check
check: lint  ## format, lint, types, layering and house rules
	$(PYTEST) tests/unit/test_layering.py tests/unit/test_house_rules.py

.PHONY: lint
lint: $(FULL)
	$(PY) -m ruff check src tests examples docs/building docs/notebooks
	$(PY) -m ruff format --check src tests examples docs/building docs/notebooks
	$(PY) -m mypy

.PHONY: property
property: $(FULL)  ## properties that must hold for any input or order of events
	$(PYTEST) tests/property

.PHONY: simulate
simulate: $(FULL)  ## SEEDS=200: every method under every fault profile; a failure prints the line that replays it
	$(PY) -m offbeat.testing.simulate --seeds $(SEEDS)

.PHONY: replay
replay: $(FULL)  ## SEED=... PROFILE=... METHOD=...: one simulated run again, exactly as it failed
	@[ -n "$(SEED)" ] && [ -n "$(PROFILE)" ] || { echo "usage: make replay SEED=17 PROFILE=name METHOD=name" >&2; exit 2; }
	$(PY) -m offbeat.testing.simulate --seed "$(SEED)" --profile "$(PROFILE)" $(if $(METHOD),--method "$(METHOD)") $(if $(MODEL),--model "$(MODEL)")

.PHONY: digests
digests: $(FULL)  ## write tests/reference/golden_digests.json anew: only when a change of results is meant
	OMP_NUM_THREADS=1 $(PY) tests/reference/golden_digests.py

.PHONY: protocols
protocols: $(FULL)  ## write docs/reference/protocols.md anew, from the algorithms' tables
	$(PY) tests/reference/protocol_page.py

.PHONY: transport
transport: $(FULL) packages  ## the same parties over gRPC and a real broker, on loopback
	$(PYTEST) tests/transport

.PHONY: browser
browser: $(FULL) packages  ## the report page in a real browser
	$(PYTEST) tests/browser

.PHONY: ray
ray: $(FULL)  ## the runtime ray on a cluster of this machine's own (one to two minutes)
	$(PYTEST) tests/transport/test_ray.py

.PHONY: attacks
attacks: $(FULL)  ## every attack on what is promised: what it got before, and what it gets now (a minute or two)
	OMP_NUM_THREADS=1 $(PY) tests/attacks/report.py

.PHONY: chaos
chaos: $(FULL)  ## real processes killed at random moments, links cut, peers stalled: twenty rounds (some ten minutes)
	$(PYTEST) -s tests/transport/test_chaos.py

.PHONY: slow
slow: $(FULL) packages  ## the tests that take minutes
	$(PYTEST) -m slow tests

# -- to look at --------------------------------------------------------------------------------------------------------

.PHONY: examples
examples: $(FULL)  ## run every example
	@shopt -s nullglob; for script in examples/*.py; do echo "== $$script" >&2; $(PY) "$$script"; done

.PHONY: pages
pages: $(CORE)  ## write the tables of figures in the pages anew, from benchmarks/results
	$(PY) docs/building/figures.py

.PHONY: site
site: $(SITE)  ## the documentation as a site, in site/: built strictly, then looked over for dead links and lone pages
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(PY) -m mkdocs build --strict --quiet
	$(PY) docs/building/check.py site

.PHONY: orgs
orgs: $(FULL) packages  ## three organisations on this machine: keys, alignment, training, prediction, report, console
	$(PY) examples/three_organisations

.PHONY: soak
soak: $(FULL)  ## JOBS=1000 short jobs and ten times as many scores, with daemons killed at random (an hour)
	OFFBEAT_SOAK_JOBS=$(JOBS) $(PYTEST) -s tests/transport/test_soak.py

.PHONY: bench
bench: $(FULL)  ## BENCH=name: one side-by-side benchmark; without a name, the list of them
	$(VENV)/bin/offbeat bench $(BENCH)

.PHONY: clean
clean:  ## remove caches and outputs (the environment stays; remove .venv to begin anew)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist runs out site
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
