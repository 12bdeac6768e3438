# Penstock. `make help` lists the targets; `make run` and `make test` do everything by themselves.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
CACHE := .cache
BASE := $(VENV)/.base-installed
DEV := $(VENV)/.dev-installed
COMPILED := $(VENV)/.compiled

.PHONY: help run cluster quick test nightly golden setup check bench bench-spark bench-pipelines bench-queues bench-cluster chaos upgrade soak soak-broker chaos-spark chaos-cluster simulate planted docs picture lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1). Set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV); scripts/system-packages python3-venv && $(PYTHON) -m venv $(VENV); } || { rm -rf $(VENV); exit 1; }

$(BIN)/uv: | $(VENV)/bin/python
	@scripts/timed "uv" $(BIN)/python -m pip install -q --disable-pip-version-check uv

$(BASE): requirements/base.txt pyproject.toml | $(BIN)/uv
	@VIRTUAL_ENV=$(VENV) scripts/timed "what Penstock needs" $(BIN)/uv pip install -q --require-hashes -r requirements/base.txt
	@# The package was called like the command once; removed first, as both have that program.
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip uninstall -q penstock
	@touch $@

# Installs the clone itself, which compiles what has changed of the modules that are compiled.
$(COMPILED): $(BASE) hatch_build.py src/penstock/compiled.py \
  $(wildcard src/penstock/records/*.py src/penstock/engine/queues/*.py src/penstock/engine/queues/sorting/*.py)
	@VIRTUAL_ENV=$(VENV) scripts/timed "Penstock itself, compiled" $(BIN)/uv pip install -q --no-deps -e .
	@touch $@

$(DEV): requirements/dev.txt $(BASE) $(COMPILED)
	@VIRTUAL_ENV=$(VENV) scripts/timed "what tests and checks need" $(BIN)/uv pip install -q --require-hashes -r requirements/dev.txt
	@touch $@

run: $(COMPILED) ## start a broker on its embedded default (data in ./data)
	@exec $(BIN)/penstock serve $(ARGS)

cluster: $(DEV) ## start three brokers with an etcd each, to try a cluster (data in ./data-cluster, Kafka on 19091 to 19093)
	@exec scripts/cluster

setup: $(DEV) ## everything: all extras, system packages, Java jars for tests; prints what each step took
	@scripts/timed "system packages" scripts/system-packages
	@scripts/timed "jars" scripts/jars
	@scripts/timed "etcd" scripts/etcd
	@scripts/timed "helm" scripts/helm

check: $(DEV) ## lint, format, types, import contracts, rules about secrets, one sentence on each line of Markdown
	@$(BIN)/python scripts/sentences.py
	@$(BIN)/python scripts/secure_code.py
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/bandit -q -c pyproject.toml -r src
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache -q 2>/dev/null || $(BIN)/lint-imports

quick: setup ## for every edit: lint, types, unit tests, properties (ARGS)
	@$(BIN)/python -m tests.runner quick $(ARGS)

test: setup ## everything that guards main; prints what each part took (ARGS='--only "unit: cli"')
	@$(BIN)/python -m tests.runner test $(ARGS)

nightly: setup ## what is long, within three hours: a fifth of all faults, a soak, an upgrade, Apache Kafka live; writes docs/nightly.md
	@$(BIN)/python -m tests.runner nightly $(ARGS)

golden: setup ## ask Apache Kafka again what tests have kept of its answers
	@RECORD=1 $(BIN)/python -m pytest tests/conformance/test_client_security.py tests/rights/test_kafka_door.py

bench: setup ## measure beside Apache Kafka; writes bench/results and docs/benchmarks.md
	@$(BIN)/python -m bench.run $(ARGS)

bench-spark: setup ## measure the Spark source beside Spark's Kafka connector; writes bench/results and docs/benchmarks-spark.md
	@$(BIN)/python -m bench.spark $(ARGS)

bench-pipelines: setup ## measure pipelines beside programs without them; writes bench/results and docs/benchmarks-pipelines.md
	@$(BIN)/python -m bench.pipelines $(ARGS)

bench-queues: setup ## measure queues, by themselves and beside Kafka's share groups; writes bench/results and docs/benchmarks-queues.md
	@$(BIN)/python -m bench.queues $(ARGS)

bench-cluster: setup ## measure three brokers beside three of Apache Kafka; writes bench/results and docs/benchmarks-cluster.md
	@$(BIN)/python -m bench.cluster $(ARGS)

simulate: setup ## many seeds of the simulated cluster (SEEDS)
	@$(BIN)/python -m tests.simulation --seeds $${SEEDS:-10000}

planted: setup ## how many seeds of the simulation find each planted bug, and the first that does
	@$(BIN)/python -m tests.simulation --planted-all

chaos-cluster: setup ## leaders and coordinators of a real cluster die again and again (KILLS, CHAOS_SEED, RECORDS)
	@KILLS=$${KILLS:-20} $(BIN)/python -m pytest -s --timeout 7200 tests/cluster

chaos: setup ## the fault matrix: a real cluster in network namespaces, every fault (CELLS); writes docs/reliability-matrix.md
	@$(BIN)/python -m tests.matrix --cells $${CELLS:-all}; code=$$?; $(BIN)/python -m tests.matrix --report && exit $$code

upgrade: setup ## three brokers of an older version (OLD, as git knows it) to this one, two of them back in between, while they are written to
	@$(BIN)/python -m tests.cluster.upgrade --old $${OLD:-HEAD~1}

soak: setup ## hostile peers, then an hour of a real cluster with a fault a minute (MINUTES): memory and descriptors stay flat
	@$(BIN)/python -m tests.hostile
	@$(BIN)/python -m tests.matrix.soak --minutes $${MINUTES:-60}

soak-broker: setup ## long runs of one broker: more kills, cuts, seeds and messages (KILLS, CUTS, SEEDS, RECORDS, QUEUE_MESSAGES, QUEUE_KILLS)
	@KILLS=$${KILLS:-500} CUTS=$${CUTS:-100} SEEDS=$${SEEDS:-20000} QUEUE_MESSAGES=$${QUEUE_MESSAGES:-100000} QUEUE_KILLS=$${QUEUE_KILLS:-20} $(BIN)/python -m pytest -q --timeout 14400 tests/chaos tests/property tests/spark/test_warm.py

chaos-spark: setup ## an exactly-once query whose driver and workers are killed again and again (KILLS, CHAOS_SEED)
	@KILLS=$${KILLS:-20} $(BIN)/python -m pytest -q -s --timeout 7200 tests/chaos_spark

docs: $(DEV) ## renew the reference pages made from the code
	@$(BIN)/python -m scripts.make_docs

picture: $(DEV) ## run a broker, kill it under load, and record that as the picture in README
	@scripts/system-packages tmux
	@$(BIN)/python -m scripts.picture docs/pictures/kill.svg

lock: $(BIN)/uv ## renew the locked requirements from pyproject.toml
	@$(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-header --no-annotate pyproject.toml -o requirements/base.txt
	@$(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-header --no-annotate --extra dev pyproject.toml -o requirements/dev.txt

clean: ## remove what the set-up made; data directories stay
	@rm -f src/penstock_compiled*; find src -name "*.so" -delete
	@rm -rf $(VENV) $(CACHE) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
