"""Servers and names for the tests. A layer is its folder: `unit`, `project` and `golden` start nothing."""

from __future__ import annotations

import gc
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from kbackup.store.s3 import S3Options
from tests.support.secrets import know, make, watch

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from pyspark.sql import SparkSession

    from scripts.dev.azurite import Azurite
    from scripts.dev.gcs import FakeGcs
    from scripts.dev.kafka import Broker
    from scripts.dev.registry import Apicurio
    from scripts.dev.s3 import Minio, MotoServer, S3Server, VersityServer
    from scripts.dev.secured import SecuredBroker

SomeMinio = TypeVar("SomeMinio", bound="Minio")

pytest_plugins = (
    "tests.support.exhaustive",
    "tests.support.lanes",
    "tests.support.limits",
    "tests.support.output_schemas",
    "tests.support.watching",
)

LAYERS = ("unit", "project", "golden", "contract", "integration", "faults", "interop", "clusters")
_WITHOUT_SERVERS = {"unit", "project", "golden"}
_SERVERS = {
    "broker",
    "secured_broker",
    "minio_server",
    "moto_server",
    "versitygw_server",
    "azurite_server",
    "fakegcs_server",
    "apicurio",
    "spark",
    "bucket",
}
_HERE = Path(__file__).parent


settings.register_profile("kbackup", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kbackup")  # on a busy machine an example takes as long as it takes


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs ignore it, and so would all commands
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    # tests leave nothing in the home of whoever runs them; those of the cache have one of their own
    os.environ["KBACKUP_METADATA_CACHE"] = "false"
    for layer in LAYERS:
        config.addinivalue_line("markers", f"{layer}: the tests under tests/{layer}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        layer = item.path.relative_to(_HERE).parts[0]
        if layer not in LAYERS:
            raise pytest.UsageError(f"{item.nodeid}: belongs into a folder of one layer: {', '.join(LAYERS)}")
        item.add_marker(layer)
        used = _SERVERS & set(getattr(item, "fixturenames", ()))
        if layer in _WITHOUT_SERVERS and used:
            raise pytest.UsageError(f"{item.nodeid}: {layer} tests start no server, but it uses {sorted(used)}")


def pytest_collection_finish() -> None:
    # Modules and collected tests are half a million objects, and a tenth of the time went into looking for garbage in
    # them again and again. What tests leave is still looked through, less often.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One broker for all tests that don't break it; those that do start their own `Broker`."""
    from scripts.dev.kafka import Broker

    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def secured_broker() -> Iterator[SecuredBroker]:
    """One broker with TLS, SASL and ACLs for all tests of those."""
    from scripts.dev.secured import SecuredBroker

    with SecuredBroker() as running:
        yield running


@pytest.fixture(scope="session")
def minio_server() -> Iterator[Minio]:
    from scripts.dev.s3 import Minio

    with watched(Minio()) as running:
        yield running


@pytest.fixture(scope="session")
def versitygw_server() -> Iterator[VersityServer]:
    from scripts.dev.s3 import VersityServer

    with VersityServer() as running:
        yield running


@pytest.fixture(scope="session")
def fakegcs_server() -> Iterator[FakeGcs]:
    from scripts.dev.gcs import FakeGcs

    with FakeGcs() as running:
        yield running


@pytest.fixture(scope="session")
def apicurio() -> Iterator[Apicurio]:
    """One schema registry for all tests that don't need an empty one."""
    from scripts.dev.registry import Apicurio

    with Apicurio() as running:
        yield running


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    from scripts.dev.s3 import MotoServer

    with MotoServer() as running:
        know("moto's secret key", running.secret_key)
        yield running


@pytest.fixture(scope="session")
def azurite_server() -> Iterator[Azurite]:
    from scripts.dev.azurite import Azurite

    with Azurite() as running:
        know("Azurite's account key", running.account_key)
        yield running


def delta_conf() -> dict[str, str]:
    """Return the configuration of a Spark session for Delta tables and s3a, with jars of the project's cache."""
    from kbackup.spark.delta import EXTENSION
    from scripts.dev.jars import delta_jars

    return {"spark.jars": ",".join(map(str, sorted(delta_jars().glob("*.jar")))), **EXTENSION}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from kbackup.spark.session import build_session

    # what users put there for their own stores: it must stay off every command line
    conf = {"spark.hadoop.fs.s3a.secret.key": make("a secret key in Spark's settings")}
    # workers import nothing from the working directory, but stores and work of tests
    path = os.pathsep.join(filter(None, [str(_HERE.parent), os.environ.get("PYTHONPATH")]))
    conf["spark.executorEnv.PYTHONPATH"] = path
    os.environ["PYTHONPATH"] = path
    session = build_session("local[2]", conf | delta_conf(), 4)
    yield session
    session.stop()


@contextmanager
def watched(server: SomeMinio) -> Iterator[SomeMinio]:
    """Run a MinIO, and look for secrets in all that it holds at its end."""
    with server as running:
        know("MinIO's root password", running.secret_key)
        yield running
        watch.look_into(running.data)


def options_of(server: S3Server) -> S3Options:
    return S3Options(**server.options)


@dataclass(frozen=True)
class Bucket:
    """A fresh bucket and what it takes to reach it."""

    name: str
    server: S3Server

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def options(self) -> S3Options:
        return options_of(self.server)

    @property
    def env(self) -> dict[str, str]:
        """The same for a process that takes it from the environment."""
        return self.server.env

    def client(self) -> S3Client:
        return self.server.client()


@pytest.fixture
def bucket(minio_server: Minio) -> Bucket:
    name = f"test-{secrets.token_hex(8)}"
    minio_server.create_bucket(name)
    return Bucket(name, minio_server)


@pytest.fixture
def topic_name() -> str:
    return f"topic-{secrets.token_hex(6)}"
