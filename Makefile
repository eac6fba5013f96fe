# Everything a contributor runs, from a fresh clone with only python3 and make: `make` shows what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TESTS ?=
JOBS ?= 2
ORDER ?=
CHAOS_TIMEOUT ?= 900
SEEDS ?= 10000
FROM ?= 0
SECONDS ?= 600
SEED ?= random
KILLS ?= 500
RUNS ?= 500
LEGITIMATE ?= 1000
IMAGES ?= 1000
CHAOS_FLAGS ?=
SCALE_FLAGS ?=
LOCK_FLAGS ?=
WAYS_FLAGS ?=
PROFILE_FLAGS ?=
AUDIT_FLAGS ?=
BENCH_FLAGS ?=

# Where it is set, each of the many processes that the tests start would compile all of the project anew.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest
PARALLEL := $(PYTEST) --numprocesses $(JOBS) $(if $(ORDER),--randomly-seed $(ORDER))
DEPENDENCIES := $(VENV)/.dependencies
INSTALLED := $(VENV)/.installed
BENCH_INSTALLED := $(VENV)/.bench
DOCS_INSTALLED := $(VENV)/.docs
NEXT := .venv-next
NEXT_INSTALLED := $(NEXT)/.installed
LOCK := $(BIN)/uv pip compile --no-config --quiet --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate $(LOCK_FLAGS)

.DEFAULT_GOAL := help
.PHONY: help setup demo tools browser promtool strace test test-all test-next test-loaded check audit format bench bench-peers docs screenshots docs-serve profile ways growth chaos chaos-effects chaos-protocols crash-images cluster attack simulate scale lock lock-next clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Make .venv with the locked packages and this project in it

# The stamp comes last: a setup that was interrupted has none, so the next one takes up the work.
$(DEPENDENCIES): requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "plancast needs Python 3.11 or later, and $(PYTHON) is " + sys.version.split()[0] + "; name another one with PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

# Without build isolation, pip takes the build backend from the lock and fetches nothing unpinned.
$(INSTALLED): $(DEPENDENCIES) pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(NEXT_INSTALLED): requirements/next.txt pyproject.toml
	test -x $(NEXT)/bin/python || $(PYTHON) -m venv $(NEXT)
	$(NEXT)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/next.txt
	$(NEXT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# What draws the benchmarks' charts; the tests draw some too.
$(BENCH_INSTALLED): $(INSTALLED) requirements/bench.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bench.txt
	@touch $@

# What builds the site; a test builds it, too.
$(DOCS_INSTALLED): $(INSTALLED) requirements/docs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

demo: setup ## Run the demo: embedded NATS and local Ray, no key needed
	$(BIN)/plancast demo

# What some tests need beside Python packages. Installed only where that takes no question; without a tool the tests that
# need it are skipped, and say so. Prometheus' server is not started: promtool is part of its package.
tools: browser promtool strace

APT := [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends

browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ $(APT) chromium >/dev/null; } || echo "There is no Chromium here: install it to have the console's pages tested."

promtool:
	@command -v promtool >/dev/null || { $(APT) prometheus >/dev/null; } || \
		echo "There is no promtool here: install Prometheus to have the alerts tested."

strace:
	@command -v strace >/dev/null || { $(APT) strace >/dev/null; } || \
		echo "There is no strace here: install it to have losses of power tested."

test: setup $(BENCH_INSTALLED) ## Run the tests that take minutes together, JOBS (2) at a time (TESTS="tests/bus -k kill" narrows it)
	$(PARALLEL) -m "not slow and not chaos and not growth" $(TESTS)

# It names the tests as they begin: a worker of pytest-xdist that is killed cannot say in which one it was.
test-all: setup $(BENCH_INSTALLED) $(DOCS_INSTALLED) tools ## Run the tests that `make test` leaves out: deployments, crashes, many seeds, the docs
	$(PARALLEL) -v -m "slow and not chaos and not growth" $(TESTS)

# requirements/next.txt holds the newest versions, also those of Ray and nats-py that pyproject.toml does not take yet.
test-next: $(NEXT_INSTALLED) ## Run the tests of the bus and of what is used of Ray with the newest versions of all packages
	$(NEXT)/bin/python -m pytest --numprocesses $(JOBS) -m "not slow and not chaos and not growth" $(or $(TESTS),tests/bus tests/actors/ray)

# A busy loop for each processor, all of which end with this command.
test-loaded: setup $(BENCH_INSTALLED) ## Run `make test` three times in a row while all processors are busy
	@trap 'kill $$loops 2>/dev/null' EXIT; trap 'exit 130' INT TERM; loops=; \
	for processor in $$(seq $$(getconf _NPROCESSORS_ONLN)); do $(BIN)/python -c 'while True: pass' & loops="$$loops $$!"; done; \
	for round in 1 2 3; do $(MAKE) test || exit; done

check: setup ## Check format, lint, types (those of the public names twice), who imports whom, and the locks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/public_types.py
	$(BIN)/lint-imports
	$(BIN)/python scripts/audit.py locks

audit: setup ## Ask for known vulnerabilities of the locked packages (AUDIT_FLAGS=--strict fails offline)
	$(BIN)/python scripts/audit.py locks
	$(BIN)/python scripts/audit.py advisories $(AUDIT_FLAGS)

format: setup ## Format, and fix what ruff can fix
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: setup $(BENCH_INSTALLED) ## Run the benchmarks in 5 minutes: ours beside the baseline (BENCH_FLAGS="--workloads w1")
	$(BIN)/python -m benchmarks $(BENCH_FLAGS)

bench-peers: setup $(BENCH_INSTALLED) ## Run ours, Restate, LangGraph and DBOS side by side, which it sets up (BENCH_FLAGS="--peers restate")
	$(BIN)/python -m benchmarks --peers $(BENCH_FLAGS)

docs: setup $(DOCS_INSTALLED) ## Build the site into site/: pictures, pages, reference
	$(BIN)/python scripts/pictures.py
	$(BIN)/python scripts/http_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

screenshots: setup browser ## Make the screenshots of the documentation anew, in docs/screenshots
	$(BIN)/python scripts/screenshots.py

docs-serve: setup $(DOCS_INSTALLED) ## Serve the site on this machine, and build it anew when a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

profile: setup ## Print where a turn's time goes (PROFILE_FLAGS=--write puts it into docs/performance.md)
	$(BIN)/python -m benchmarks.profile $(PROFILE_FLAGS)

ways: setup ## Measure what each fast path brings beside the plain one, 1 to 2 hours (WAYS_FLAGS="--only turns --write")
	$(BIN)/python -m benchmarks.ways $(WAYS_FLAGS)

growth: setup ## Finish a million plans, take 10,000 turns of one, and print what that needs
	$(BIN)/python -m pytest -m growth -s $(TESTS)

chaos: setup ## Kill, stop and cut off what runs plans for SECONDS (600), from SEED (random), and prove what was kept
	$(BIN)/python -m tests.chaos.run --seconds $(SECONDS) --seed $(SEED) $(CHAOS_FLAGS)
	PYTEST_TIMEOUT=$(CHAOS_TIMEOUT) $(BIN)/python -m pytest -m chaos --ignore tests/cluster $(TESTS)

chaos-effects: setup ## Kill KILLS (500) workers between the commit and the answer of a task, from SEED (random), and count second acts
	$(BIN)/python -m tests.chaos.effects.run --kills $(KILLS) --legitimate $(LEGITIMATE) --seed $(SEED)

chaos-protocols: setup ## Kill `plancast serve` between any two events, in RUNS (500) runs a protocol, from SEED (random)
	$(BIN)/python -m tests.chaos.protocols.run --runs $(RUNS) --seed $(SEED)

crash-images: setup strace ## Make IMAGES (1000) of what a loss of power leaves of a server's disk, from SEED (random), and count silent losses
	$(BIN)/python -m tests.crash_images.run --images $(IMAGES) --seed $(SEED)

cluster: setup ## Run all tests with several nats-servers and Ray nodes
	PYTEST_TIMEOUT=$(CHAOS_TIMEOUT) $(BIN)/python -m pytest tests/cluster $(TESTS)

attack: setup ## Attack what runs as a stranger, a tenant, a worker, a model would, and print what held
	$(BIN)/python -m pytest -p no:randomly -p tests.attack.table -m attack $(TESTS)

simulate: setup ## Simulate SEEDS seeds (10000), the first one being FROM (0), on all cores
	$(BIN)/python -m simulation --seeds $(SEEDS) --from $(FROM)

scale: setup ## Plan for 10 million plans from the figures in benchmarks/results, and simulate it (SCALE_FLAGS=--write)
	$(BIN)/python -m benchmarks.sharding $(SCALE_FLAGS)

# No header, no annotations, no index lines: nothing of the machine that makes the lock gets into it.
lock: setup ## Pin requirements/*.txt anew from pyproject.toml (LOCK_FLAGS=--upgrade for newer ones)
	$(LOCK) pyproject.toml -o requirements/runtime.txt >/dev/null
	$(LOCK) pyproject.toml --group dev -c requirements/runtime.txt -o requirements/dev.txt >/dev/null
	$(LOCK) pyproject.toml --extra telemetry --group image -c requirements/dev.txt -o requirements/image.txt >/dev/null
	$(LOCK) --group bench -c requirements/dev.txt -o requirements/bench.txt >/dev/null
	$(LOCK) --group docs -c requirements/dev.txt -o requirements/docs.txt >/dev/null

lock-next: setup ## Pin requirements/next.txt to the newest versions, beyond the bounds of pyproject.toml for Ray and NATS
	$(LOCK) --upgrade pyproject.toml --group dev --override requirements/next.in -o requirements/next.txt >/dev/null

clean: ## Remove caches and build results; .venv stays
	rm -rf dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage htmlcov
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
