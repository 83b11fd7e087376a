# Everything runs in .venv, made from the locked, hashed requirements/dev.txt, and made again when that changes.
# Servers for tests and demo (Kafka, MinIO) come into $KBACKUP_CACHE, by default ~/.cache/kbackup, on first use.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.made
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-annotate --custom-compile-command "make lock" $(UPGRADE)

WORKERS := --numprocesses 3 --dist worksteal
# Each worker has its own broker, MinIO and Spark (some 4 GiB); the tests of a file, or of a group of files, share what
# they made with them. Four fill two cores: many tests wait for a broker or a lease. tests/support/lanes.py has the
# groups, and what runs first, so that no worker is left with a long file at the end.
SERVERS := --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations 25

# What tests start finds modules compiled, as in an installation, and pytest finds its rewritten assertions.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check types style imports quick layers project servers-ready servers migration image clusters wheel wheels versions dist sbom soak venv lock \
	bench clean tools docs

demo: venv
	$(BIN)/python -m scripts.demo

# Quick layers first: what they find needs no server to be found. As root of a machine with apt-get and without a Chromium it
# installs Debian's package chromium, and says so before; nothing else leaves this folder and $KBACKUP_CACHE.
test: check
	@$(BIN)/python -m scripts.dev.tools plan
	@$(MAKE) --no-print-directory --jobs 2 layers servers-ready
	$(BIN)/python -m scripts.dev.tools browser
	@$(MAKE) --no-print-directory --jobs 2 servers wheel sbom

# What needs no server, and beside it the servers' downloads and builds, which wait for the network most of the time.
layers: venv
	$(BIN)/pytest $(WORKERS) tests/unit tests/golden tests/project

servers-ready: venv
	$(BIN)/python -m scripts.dev fetch

# Two at a time: mypy takes as long as the others together.
check: venv
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types style imports

types: venv
	$(BIN)/mypy

style: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check

imports: venv
	$(BIN)/lint-imports

# A quick answer: of loops over crash points, many examples and processes it runs a sample.
quick: check
	$(BIN)/pytest -q $(WORKERS) --sample tests/unit tests/golden

# What is around the product alone: image and manifests, documents, its behaviour at scale.
project: venv
	$(BIN)/pytest -q $(WORKERS) tests/project

# The tests that start servers, among them clusters with ZooKeeper on their whole way to KRaft.
servers: servers-ready
	$(BIN)/pytest $(SERVERS) tests/faults tests/integration tests/interop tests/contract

# Of those, the clusters with ZooKeeper alone.
migration: servers-ready
	$(BIN)/pytest $(SERVERS) --numprocesses 2 tests/interop/migration

# The image, on Debian's packages, or on a base of a registry: make image BASE=python:3.11-slim-bookworm. As root of a
# machine with apt-get it installs podman, crun, debootstrap and locales where they are missing, and says so before.
image: venv
	@$(BIN)/python -m scripts.dev.tools containers
	$(BIN)/python -m scripts.dev.image $(BASE)

# Jobs in containers and on other machines. The image as pods run it; YARN; Kubernetes: its API server and controllers take
# the chart, and a kubelet runs its pods. The first time, Go builds them in some ten minutes, and podman the image in another
# ten. For the kubelet, root of a machine with apt-get installs containerd and more where it is missing, and says so before.
clusters: image
	@$(BIN)/python -m scripts.dev.tools nodes
	$(BIN)/pytest --durations 10 tests/clusters

# Two builds of the wheel, which must be the same, installed with all extras.
wheel: venv
	$(BIN)/python -m scripts.dev.wheels

# The same, installed for each supported Python on the machine.
wheels: venv
	$(BIN)/python -m scripts.dev.wheels --each-python

# The main jobs with the newest Spark of each line, with each Python on the machine, with the oldest packages, and with
# brokers of all ages; `make versions PARTS="spark kafka"` runs a part of it. No part of `make test`: it takes an hour.
versions: wheels
	$(BIN)/python -m scripts.versions $(PARTS)

# The sdist and the wheel of a release.
dist: venv
	rm -f dist/kafka_kbackup-*
	$(BIN)/python -m scripts.dev.wheels dist

# The packages of the image with versions and hashes, in CycloneDX. Its program has an environment of its own: in .venv,
# jsonschema would find packages of it that compile 38 grammars in every process of the tests, 3 s of each.
sbom: venv
	mkdir -p dist
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/sbom
	$(BIN)/uv pip install --quiet --python build/sbom/bin/python --require-hashes --requirement requirements/sbom.txt
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) PYTHONWARNINGS=ignore::UserWarning build/sbom/bin/cyclonedx-py requirements \
		requirements/run.txt --pyproject pyproject.toml --output-reproducible --output-file dist/kbackup.cdx.json

# The site of the documents, in build/site/html; a broken link ends it. requirements/docs.txt is enough to build it.
docs: venv
	$(BIN)/python -m scripts.docs.site

# What takes hours, and is stopped when it has run long enough.
soak: venv
	$(BIN)/pytest --soak $(WORKERS) tests/unit tests/golden
	$(BIN)/pytest --soak -m soak tests/project tests/faults tests/integration tests/interop tests/contract
	$(BIN)/python -m scripts.soak.kills
	$(BIN)/python -m scripts.soak.kills --mirrors
	$(BIN)/python -m scripts.soak.blackouts
	$(BIN)/python -m scripts.soak.serve
	$(BIN)/python -m scripts.soak.walk
	$(BIN)/python -m scripts.soak.transactions
	$(BIN)/python -m scripts.soak.transactions --nodes 3 --kill

bench: venv
	$(BIN)/python -m scripts.bench

venv: $(STAMP)

# Packages that come as source (pyspark does) are built with the locked setuptools: hence build.txt first. uv installs the
# rest in a quarter of pip's time.
$(STAMP): requirements/build.txt requirements/install.txt requirements/dev.txt | tools
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes --requirement requirements/build.txt --requirement requirements/install.txt
	UV_HTTP_TIMEOUT=$${UV_HTTP_TIMEOUT:-180} $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes \
		--no-build-isolation --requirement requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/python -m kbackup.spark
	touch $@

tools:
	@$(PYTHON) -m scripts.dev.tools

# Pins stay unless pyproject.toml asks for others; `make lock UPGRADE=--upgrade` moves them all.
lock: venv
	$(LOCK) pyproject.toml --all-extras --group dev --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --extra azure --extra gcs --extra native --extra schemas --extra web --extra zookeeper --constraint requirements/dev.txt \
		--output-file requirements/run.txt
	$(LOCK) --group build --constraint requirements/dev.txt --output-file requirements/build.txt
	$(LOCK) --group install --constraint requirements/dev.txt --output-file requirements/install.txt
	$(LOCK) --group docs --constraint requirements/dev.txt --output-file requirements/docs.txt
	$(LOCK) --group sbom --constraint requirements/dev.txt --output-file requirements/sbom.txt
	$(BIN)/python -m scripts.dev lock

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info build dist \
		spark-warehouse metastore_db
	find kbackup scripts tests -name __pycache__ -prune -exec rm -rf {} +
