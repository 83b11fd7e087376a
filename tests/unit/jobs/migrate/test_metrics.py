"""Metrics of a controller, by the names that exporters make of them."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kbackup.errors import CorruptError, UsageError
from kbackup.jobs.migrate.readings import parse_metrics, read_metrics
from kbackup.jobs.migrate.states import KafkaState, MetricsWitness, NotRead
from kbackup.metadata.sources import MetricsAccess

PLAIN = """\
# HELP kafka_controller_KafkaController_Value Attribute exposed for management
# TYPE kafka_controller_KafkaController_Value untyped
kafka_controller_KafkaController_Value{name="ActiveControllerCount",} 1.0
kafka_controller_KafkaController_Value{name="ZkMigrationState",} 1.0
kafka_controller_KafkaController_Value{name="ZkWriteBehindLag",} 12.0
kafka_controller_KafkaController_Value{name="MigratingZkBrokerCount",} 3.0
kafka_controller_KafkaController_Value{name="OfflinePartitionsCount",} 9.0
kafka_server_Other_Value{name="ZkMigrationState",} 0.0
"""
LOWER = """\
kafka_controller_kafkacontroller_activecontrollercount 1.0
kafka_controller_kafkacontroller_zkmigrationstate 1.0
kafka_controller_kafkacontroller_zkwritebehindlag 12.0
kafka_controller_kafkacontroller_migratingzkbrokercount 3.0
"""
VALUES = """\
kafka_controller_KafkaController_ActiveControllerCount_Value 1.0
kafka_controller_KafkaController_ZkMigrationState_Value 1.0
kafka_controller_KafkaController_ZkWriteBehindLag_Value 12.0
kafka_controller_KafkaController_MigratingZkBrokerCount_Value 3.0
"""
LABELLED = """\
kafka_controller_value{type="KafkaController",name="ActiveControllerCount"} 1.0
kafka_controller_value{type="KafkaController",name="ZkMigrationState"} 1.0
kafka_controller_value{type="KafkaController",name="ZkWriteBehindLag"} 12.0
kafka_controller_value{type="KafkaController",name="MigratingZkBrokerCount"} 3.0
"""
SNAKE = """\
kafka_controller_kafka_controller_active_controller_count 1.0
kafka_controller_kafka_controller_zk_migration_state 1.0
kafka_controller_kafka_controller_zk_write_behind_lag 12.0
kafka_controller_kafka_controller_migrating_zk_broker_count 3.0
"""


@pytest.mark.parametrize("text", [PLAIN, LOWER, VALUES, LABELLED, SNAKE])
def test_names_of_exporters(text: str) -> None:
    assert parse_metrics(text, "u") == MetricsWitness("u", KafkaState.MIGRATION, True, 3, 12)


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "NONE"), (1, "MIGRATION"), (2, "PRE_MIGRATION"), (3, "POST_MIGRATION"), (4, "ZK")],
)
def test_numbers_of_kafka(number: int, name: str) -> None:
    """MIGRATION is 1 and PRE_MIGRATION 2: Kafka 3.5 exchanged them."""
    text = f"kafka_controller_kafkacontroller_zkmigrationstate {number}\n"
    assert parse_metrics(text, "u") == MetricsWitness("u", KafkaState[name])


def test_a_controller_that_knows_no_leader_has_no_state() -> None:
    text = "kafka_controller_kafkacontroller_zkmigrationstate -1\n"
    assert parse_metrics(text, "u") == MetricsWitness("u", None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "up 1\n",
        "<html>",
        "kafka_controller_kafkacontroller_zkmigrationstate 7\n",
        PLAIN.replace("1.0", "NaN"),
    ],
)
def test_other_text(text: str) -> None:
    with pytest.raises(CorruptError, match=r"^u "):
        parse_metrics(text, "u")


@pytest.fixture
def exporter() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            login = "Basic " + base64.b64encode(b"watcher:hush").decode()
            paths = {"/metrics?a=b": 200, "/secured": 200 if self.headers["Authorization"] == login else 401}
            self.send_response(302 if self.path == "/moved" else paths.get(self.path, 404))
            if self.path == "/moved":
                self.send_header("Location", "/secured")
            self.end_headers()
            self.wfile.write(PLAIN.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_asking(exporter: str) -> None:
    told = read_metrics(f"{exporter}/metrics?a=b")
    assert isinstance(told, MetricsWitness)
    assert (told.url, told.state) == (f"{exporter}/metrics", KafkaState.MIGRATION)


def test_no_answer(exporter: str) -> None:
    for url in (f"{exporter}/other", "http://127.0.0.1:1/metrics"):
        told = read_metrics(url)
        assert isinstance(told, NotRead)
        assert url in told.why
        assert told.hint


def test_a_login(exporter: str) -> None:
    told = read_metrics(f"{exporter}/secured", MetricsAccess(user="watcher", password="hush"))
    assert isinstance(told, MetricsWitness)
    for path, access in (
        ("secured", MetricsAccess()),
        ("secured", MetricsAccess(user="watcher", password="other")),
        ("moved", MetricsAccess(user="watcher", password="hush")),  # only the exporter that is named gets it
    ):
        refused = read_metrics(f"{exporter}/{path}", access)
        assert isinstance(refused, NotRead)
        assert "hush" not in repr(refused)
        assert "set controller.metrics.username" in refused.hint


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    broken = tmp_path / "trusted.pem"
    broken.write_text("nothing")
    for file in (broken, tmp_path / "missing.pem"):
        with pytest.raises(
            UsageError, match=r"controller\.metrics\.ssl\.truststore\.location: can't use .*\.pem"
        ):
            read_metrics("https://127.0.0.1:1/metrics", MetricsAccess(certificates=str(file)))


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "localhost:9404", "http://", "http://user:secret@host/metrics"]
)
def test_other_urls(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_metrics(url)
    assert "secret" not in str(raised.value)
