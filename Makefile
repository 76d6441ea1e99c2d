# Tidemark. `make help` prints every target; `make run` and `make test` set up what they need.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run
STAMP := $(VENV)/.installed
ANALYTICS_STAMP := $(VENV)/.analytics
STORE ?= data
NODES ?= 2
GROUPS ?= 1
NAMES ?= 0
SEED ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Where it is set, every process of every test compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: java help setup analytics image-analytics lag lag-drill lag-scenarios run test check format lint types contracts chaos cluster-chaos crash damage delay-drill retention simulation soak referee kafka sim simulation-group simulation-cluster simulation-mutants drill drill-etcd stall-drill bench image image-proof dashboards metrics-page k8s-secret k8s-run k8s-drill deploy-tools lint-deploy old-kustomize dist lock clean alert-drill streams

help: ## Print this list
	@grep -hE '^[a-z0-9%-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

SPEEDUPS := setup.py $(wildcard tidemark/formats/speedups/*.pyx tidemark/formats/speedups/*.pxi tidemark/formats/speedups/*.h)

# Lines that match, as they come. Not awk: mawk reads whole blocks, and showed nothing for half a minute.
show = { pattern='$(1)'; while IFS= read -r line; do [[ ! $$line =~ $$pattern ]] || echo "$$line"; done; }

# What running needs is a quarter of what testing needs: a first `make run` waits for no test tool.
$(RUN_STAMP): requirements.lock pyproject.toml deploy/docker/locked.py $(SPEEDUPS)
	@$(PYTHON) -c 'import sys; sys.exit("Tidemark needs Python 3.11 or later; set PYTHON=") if sys.version_info < (3, 11) else None'
	@echo "Installing into $(VENV): 1 of 3, the environment"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python deploy/docker/locked.py run server build > $(VENV)/run.lock
	@echo "Installing into $(VENV): 2 of 3, $$(grep -c == $(VENV)/run.lock) packages"
	@$(BIN)/pip install --require-hashes -r $(VENV)/run.lock | $(call show,^ *(Downloading|Installing|Successfully installed))
	@echo "Installing into $(VENV): 3 of 3, Tidemark itself; the compiler takes half a minute, or more on a busy machine"
	@$(BIN)/pip install --verbose --no-build-isolation --no-deps -e . 2>&1 | tee $(VENV)/build.log \
	  | $(call show,building .* extension) || { cat $(VENV)/build.log >&2; exit 1; }
	@$(BIN)/python -c 'from tidemark.formats import native; print("Pure Python runs:", native.WHY_PURE) if native.WHY_PURE else None'
	@touch $(RUN_STAMP)

$(STAMP): $(RUN_STAMP)
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	@touch $(STAMP)

$(ANALYTICS_STAMP): $(STAMP) requirements-analytics.lock
	@$(MAKE) -s java
	$(BIN)/pip install --quiet --require-hashes -r requirements-analytics.lock
	@$(BIN)/python -m analytics.jars 2>$(VENV)/jars.log && touch $(ANALYTICS_STAMP) || tail -n 2 $(VENV)/jars.log

analytics: $(ANALYTICS_STAMP) ## Install Spark into .venv as well, for lag analytics and for tests

setup: $(STAMP) ## Make the virtual environment .venv and install into it

run: $(RUN_STAMP) ## Start a master and a slave in this terminal (NODES=1: a standalone node; GROUPS=2 NAMES=1: a cluster; STORE=data) and print their URLs
	exec $(BIN)/tidemark dev --nodes $(NODES) --groups $(GROUPS) --names $(NAMES) --store $(STORE)

# What calls tidemark.formats.native. `tests/unit/formats` names both implementations itself.
PURE_TESTS := tests/golden tests/simulation/test_{power_cuts,flipped_bits,torn_without_checkpoint}.py \
	tests/unit/files/test_{commit_log*,copied_log_writer,foreign_ranges,index*,log_*,pull,recovery*}.py \
	tests/unit/reput/test_{dispatcher*,index_writer,many_queues,queue_writer,resume,unit_mending}.py \
	tests/unit/broker/{api/test_fast_path,replication/test_followed_state,send/test_sender,send/test_stored_ids}.py \
	tests/unit/ha/{shell/test_cutting,wire/test_record_assembler}.py tests/unit/client/test_received.py \
	tests/unit/cli/test_store_commands.py tests/unit/analytics/sources/test_{store_queues,topic_answers}.py

# Three workers on two cores: some tests wait for processes, disks and sockets.
test: analytics ## Run all tests, first with the pure implementation, then all; missing tools are named
	@failed=0; \
	TIDEMARK_PURE=1 $(BIN)/pytest -n 3 --dist loadgroup $(PURE_TESTS) || failed=1; \
	$(BIN)/pytest -n 3 --dist loadgroup && exit $$failed

# Three workers as for test, and types beside them. The stores are in memory where there is room for
# them: these tests sync some 50,000 times. `make test` has them on the disk.
MEMORY = $(shell { [ "$$(df -k --output=avail /dev/shm | tail -n 1)" -gt 4000000 ] && echo /dev/shm; } 2>/dev/null)

check: analytics format lint contracts ## Format, lint, types, contracts, unit and property tests
	@$(BIN)/mypy & types=$$!; failed=0; \
	PYTEST_DEBUG_TEMPROOT=$(MEMORY) $(BIN)/pytest -q -n 3 --hypothesis-profile quick tests/unit \
		|| failed=1; \
	wait $$types && exit $$failed

format: setup
	$(BIN)/ruff format --check .

lint: setup
	$(BIN)/ruff check .

types: analytics
	$(BIN)/mypy

contracts: analytics
	$(BIN)/lint-imports

chaos: setup ## Three minutes of consumers that come, go and are killed, at 20,000 messages/s; then an ordered group
	$(BIN)/python -m tests.support.group_chaos --seconds 180 --rate 20000
	$(BIN)/python -m tests.support.group_chaos --seconds 180 --rate 2000 --ordered

cluster-chaos: setup ## Three minutes of kills in a cluster of three broker groups, at 20,000 messages/s, while one is drained and one is added; SEED=1 repeats a plan
	$(BIN)/python -m tests.support.cluster_chaos --seconds 180 --rate 20000 $(if $(filter-out 0,$(SEED)),--seed $(SEED))

delay-drill: setup ## A million delayed messages, the node killed five times; prints the lateness and the memory
	$(BIN)/python -m tests.processes.delay_drill --messages 1000000

retention: setup ## Three minutes of load on a small disk; as root: it mounts a small file system
	TIDEMARK_RETENTION_SECONDS=$${TIDEMARK_RETENTION_SECONDS:-180} $(BIN)/pytest -s -n0 --timeout 900 tests/processes/test_retention_full_disk.py

damage: setup ## Every kind of damage to every file of a store at every moment; prints the seed and the counts
	TIDEMARK_DAMAGE=$${TIDEMARK_DAMAGE:-all} $(BIN)/pytest -rs -n 2 --timeout 7200 tests/processes/test_damage.py

crash: setup ## 200 cycles of SIGKILL under load; prints the seed and the counts
	TIDEMARK_CRASH_CYCLES=$${TIDEMARK_CRASH_CYCLES:-200} $(BIN)/pytest -s --timeout 7200 tests/processes/test_crash.py tests/processes/test_index_kills.py

simulation: setup ## Thousands of seeded power cuts on a simulated disk
	TIDEMARK_SIM_SEEDS=$${TIDEMARK_SIM_SEEDS:-5000} $(BIN)/pytest -s -n 2 --timeout 7200 tests/simulation

sim: setup ## Play one seed of a simulated group again: `make sim SEED=n`, with FAULT=name a planted fault, with TRACE=1 every step
	$(BIN)/python -m tests.simulation.replication $(SEED) $(if $(FAULT),--fault $(FAULT)) $(if $(TRACE),--trace)

simulation-group: setup ## Ten thousand simulated histories of a group, and the planted faults
	TIDEMARK_GROUP_SEEDS=$${TIDEMARK_GROUP_SEEDS:-10000} $(BIN)/pytest -s -n 2 --timeout 7200 tests/simulation/test_replication.py tests/simulation/test_replication_planted.py

simulation-cluster: setup ## Ten thousand simulated histories of a cluster, three of 64 broker groups and 10,000 clients, and the planted mistakes
	TIDEMARK_CLUSTER_SEEDS=$${TIDEMARK_CLUSTER_SEEDS:-10000} TIDEMARK_CLUSTER_LARGE=$${TIDEMARK_CLUSTER_LARGE:-3} $(BIN)/pytest -s -n 2 --timeout 7200 tests/simulation/test_cluster.py tests/simulation/test_cluster_planted.py

simulation-mutants: setup ## COUNT=50 mistakes drawn at random by SEED=0 in what the simulation runs; prints how many it finds
	$(BIN)/python -m tests.simulation.replication.mutants --seed $(SEED) --count $(or $(COUNT),50)

drill: setup ## All fault drills but the longest on real groups of nodes, as root in network namespaces; report in build/drills
	$(BIN)/tidemark drill --all --out build/drills

drill-etcd: setup ## The same with each lease in an etcd of three members, one per machine; report in build/drills-etcd
	$(BIN)/tidemark drill --all --lease etcd --out build/drills-etcd

stall-drill: setup ## Each process of a master stopped for 1 s to 10 min, as root: about 40 minutes; report in build/stalls
	$(BIN)/tidemark drill 53 54 55 56a 56b 56c --out build/stalls

drill-%: setup ## One fault drill, for example `make drill-28`; `tidemark drill --list` names them
	$(BIN)/tidemark drill $* --out build/drills

alert-drill: setup ## Planted faults told by a real Prometheus and Alertmanager, at true speed: about half an hour, as root
	TIDEMARK_ALERT_FACTOR=$${TIDEMARK_ALERT_FACTOR:-1} $(BIN)/pytest -s -n0 --timeout 7200 tests/prometheus/test_live.py

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; found="$$("$$java" -version 2>&1 || true)"; \
	[[ "$$found" =~ version\ \"([0-9]+) ]] && (( BASH_REMATCH[1] >= 17 )) || { \
	echo "Lag analytics needs Java 17 or later; $$java -version says: $${found%%$$'\n'*}" >&2; \
	echo "apt-get install openjdk-17-jre-headless, or set JAVA_HOME." >&2; exit 1; }

lag: java analytics ## Five groups that lag for five reasons, on a small cluster, and the report that says so; needs Java 17; MINUTES=4
	$(BIN)/python -m drills.lag --minutes $(or $(MINUTES),4)

lag-drill: analytics ## The same through a real Prometheus, every number held against the brokers; MINUTES=10
	TIDEMARK_LAG_MINUTES=$(or $(MINUTES),10) $(BIN)/pytest -s -n0 --timeout 3600 tests/analytics/test_end_to_end.py

lag-scenarios: analytics ## Random groups that are well or fail, judged by us and by Burrow's rules; SEEDS=20 FIRST=1
	$(BIN)/python -m tests.support.lag_scenarios --seeds $(or $(SEEDS),20) --first $(or $(FIRST),1)

streams: analytics ## collect and evaluate over six hours of 500 pairs with kills, late and repeated samples, a source away; prints the seed
	TIDEMARK_STREAMS=$${SIZE:-whole} $(BIN)/pytest -s -n0 --timeout 3600 tests/analytics/jobs/test_live_streams.py

soak: setup ## Five minutes of load; anonymous memory must stay flat
	TIDEMARK_SOAK_SECONDS=$${TIDEMARK_SOAK_SECONDS:-300} $(BIN)/pytest -s --timeout 3600 tests/processes/test_memory.py

referee: ## Build the programs that open and write stores with Apache RocketMQ's own classes (needs Maven)
	mvn --quiet --batch-mode -f tests/referee/pom.xml dependency:copy-dependencies \
	  -DoutputDirectory=$(CURDIR)/build/referee/lib
	mkdir -p build/referee/classes
	javac -cp 'build/referee/lib/*' -d build/referee/classes tests/referee/src/main/java/*.java

kafka: ## Fetch Apache Kafka for benchmarks that compare sends with it (needs Maven; Java 17 to run)
	rm -rf build/kafka
	mvn --quiet --batch-mode -f bench/pom.xml dependency:copy-dependencies \
	  -DoutputDirectory=$(CURDIR)/build/kafka/lib

metrics-page: setup ## Write the tables of docs/metrics.md from the catalogue of metrics
	$(BIN)/python -m shared.metrics.page

api-page: setup ## Write the calls of docs/api.md from the HTTP contract
	$(BIN)/python -m services.broker.api.reference

bench: analytics ## Measure all figures; `make bench-NAME` one of them (bench/README.md)
	$(BIN)/python -m bench

bench-%: analytics ## Measure one figure, for example `make bench-encode`
	$(BIN)/python -m bench $*

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE ?= tidemark:$(VERSION)

image: ## Build the image tidemark:VERSION; BASE= another Debian bookworm, IMAGE= another name
	docker build --file deploy/docker/Dockerfile --target run --tag $(IMAGE) $(if $(BASE),--build-arg BASE=$(BASE)) \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) .

ANALYTICS_IMAGE ?= tidemark-analytics:$(VERSION)

image-analytics: ## Build the image of lag analytics, with Spark and Java: tidemark-analytics:VERSION; BASE= as for image
	docker build --file deploy/docker/Dockerfile --target analytics --tag $(ANALYTICS_IMAGE) $(if $(BASE),--build-arg BASE=$(BASE)) \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) .

DEPLOY_VENV := .venv-deploy
DEPLOY_STAMP := $(DEPLOY_VENV)/.installed

$(DEPLOY_STAMP): deploy/requirements.lock
	$(PYTHON) -m venv $(DEPLOY_VENV)
	$(DEPLOY_VENV)/bin/pip install --quiet --require-hashes -r deploy/requirements.lock
	@touch $(DEPLOY_STAMP)

deploy-tools: $(DEPLOY_STAMP) ## Install what judges the manifests, in an environment of its own

lint-deploy: analytics $(DEPLOY_STAMP) ## Render every overlay; schemas, policies, style, the Dockerfile, names that the code has (needs kubectl)
	$(DEPLOY_VENV)/bin/python -m deploy.lint
	$(BIN)/pytest -q -n 2 tests/deploy/test_{names,analytics,cluster,rendering,pages}.py

OLD_KUSTOMIZE := build/old-kustomize/kustomize

old-kustomize: setup $(OLD_KUSTOMIZE) ## Build the kustomize of kubectl 1.27 (needs Go): it renders the same bytes
	$(BIN)/python -m deploy.lint.old_kustomize $(OLD_KUSTOMIZE)

$(OLD_KUSTOMIZE):
	mkdir -p $(@D)
	cd $(@D) && printf 'module old\n\ngo 1.19\n\nrequire sigs.k8s.io/kustomize/kustomize/v5 v5.0.1\n' > go.mod \
	  && printf '//go:build tools\n\npackage old\n\nimport _ "sigs.k8s.io/kustomize/kustomize/v5"\n' > tools.go \
	  && GOFLAGS=-mod=mod go build -o kustomize sigs.k8s.io/kustomize/kustomize/v5

SECRET := deploy/k8s/overlays/ha/secret.key

k8s-secret: $(SECRET) ## Make the secret that the nodes of overlays/ha prove themselves with, once; git ignores it

$(SECRET):
	umask 077 && $(PYTHON) -c 'import secrets; print(secrets.token_hex(32))' > $@

OVERLAY ?= ha

k8s-run: setup k8s-secret ## As root: run the pods of deploy/k8s/overlays/OVERLAY here, in namespaces, until Ctrl-C
	$(BIN)/python -m drills.pods run --overlay deploy/k8s/overlays/$(OVERLAY)

k8s-drill: setup k8s-secret ## As root: break those pods under load, and judge; report in build/k8s
	$(BIN)/python -m drills.pods drill --overlay deploy/k8s/overlays/$(OVERLAY)

dashboards: setup ## Write the Grafana dashboards again from deploy/grafana/boards
	$(BIN)/python -m deploy.grafana

image-proof: setup ## As root: build the image without a registry, run it confined, kill the master, clean up
	$(BIN)/python -m tests.image

dist: setup ## Build the source distribution and the wheel into dist/, twice; install and try them
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(BIN)/python -m deploy.dist

lock: ## Resolve both lock files again (hashes, no registry address)
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv
	build/lock/bin/uv pip compile --quiet --python-version 3.11 --extra dev --generate-hashes \
	  --no-emit-index-url --no-header --annotation-style line pyproject.toml -o requirements.lock
	build/lock/bin/uv pip compile --quiet --python-version 3.11 --extra analytics --generate-hashes \
	  --constraints requirements.lock \
	  --no-emit-index-url --no-header --annotation-style line pyproject.toml -o requirements-analytics.lock
	build/lock/bin/uv pip compile --quiet --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --annotation-style line deploy/requirements.in -o deploy/requirements.lock

clean: ## Remove the environment, caches and build output; never a store
	rm -rf $(VENV) $(DEPLOY_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
