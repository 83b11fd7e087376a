"""`check` against a real broker and a real S3 server."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from kbackup import cli
from kbackup.archive.lease import HeldLease
from kbackup.store import open_store
from tests.integration.backed_up import commit, on_session, options_of, produce, write_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scripts.dev.kafka import Broker
    from scripts.dev.s3 import Minio

Said = pytest.CaptureFixture[str]


@pytest.fixture
def topic(broker: Broker, topic_name: str) -> str:
    broker.create_topic(topic_name, partitions=2)
    produce(broker, topic_name, 1, range(10))
    commit(broker, f"reader-{topic_name}", topic_name, {1: 4})
    return topic_name


@pytest.fixture
def url() -> str:
    return f"s3://check-{secrets.token_hex(6)}"


@pytest.fixture
def config(broker: Broker, minio_server: Minio, url: str, tmp_path: Path) -> Path:
    minio_server.create_bucket(url.removeprefix("s3://"))
    return write_config(tmp_path / "kbackup.toml", broker, minio_server, url.removeprefix("s3://"))


def told(capsys: Said, config: Path, *args: str) -> tuple[int, dict[str, Any]]:
    """Exit code and steps by their names."""
    code = cli.main(["check", "--config", str(config), "--json", *args])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    return code, {step["name"]: step for step in document["steps"]}


def test_all_is_well(
    broker: Broker,
    minio_server: Minio,
    url: str,
    config: Path,
    topic: str,
    spark: SparkSession,
    capsys: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_session(spark, monkeypatch, "check")
    before = set(AdminClient(broker.client(log_level=0)).list_topics(timeout=30).topics)
    only = ["-t", topic, "-g", f"reader-{topic}"]
    code, steps = told(capsys, config, *only, "--target", "--spark")
    failed = {name: s["status"] for name, s in steps.items() if s["status"] != "ok"}
    assert not failed, f"steps that did not succeed: {failed}"
    assert code == 0
    assert steps["source: topics"]["detail"].startswith("1 of ")
    assert steps["source: offsets"]["detail"] == "2 partitions"
    assert steps["source: read"]["detail"] == "1 record from 1 topic"
    assert steps["source: groups"]["detail"].startswith("1 with offsets")
    assert {"target: create topics", "target: transactions", "spark: run a task"} <= steps.keys()
    assert list(open_store(url, options_of(minio_server)).list()) == []
    own = {"__consumer_offsets", "__transaction_state"}
    assert set(AdminClient(broker.client(log_level=0)).list_topics(timeout=30).topics) - own == before - own


def test_steps_go_on_after_a_failure(config: Path, topic: str, capsys: Said) -> None:
    code, steps = told(capsys, config, "-t", topic, "--set", "s3.secret_access_key=wrong")
    assert code == 14
    assert steps["archive: open"]["status"] == "failed"
    assert steps["archive: open"]["hint"]
    assert steps["archive: delete"]["status"] == "skipped"
    assert steps["source: read"]["status"] == "ok"


def test_a_topic_that_is_not_there(config: Path, capsys: Said) -> None:
    code, steps = told(capsys, config, "-t", "no-such-topic")
    assert code == 2
    assert "there is no topic no-such-topic" in steps["source: topics"]["detail"]
    assert steps["source: topics"]["hint"]
    assert steps["source: groups"]["status"] == "skipped"
    code, steps = told(capsys, config, "-t", "/no such/")
    assert (code, steps["source: topics"]["status"]) == (2, "failed")
    assert "no topic in the source cluster matches /no such/" in steps["source: topics"]["detail"]
    code, steps = told(capsys, config, "--exclude-topic", "/.*/", "-g", "no-such-group")
    assert (code, steps["source: topics"]["status"]) == (2, "warning")
    assert steps["source: read"]["detail"].startswith("nothing to read")
    assert "there is no group no-such-group" in steps["source: groups"]["detail"]


def test_a_held_lease_and_a_target_that_is_not_there(
    minio_server: Minio, url: str, config: Path, topic: str, capsys: Said
) -> None:
    store = open_store(f"{url}/some/prefix", options_of(minio_server))
    with HeldLease(store, "kbackup backup", 60):
        code, steps = told(capsys, config, "-t", topic, "--target", "--set", "target.bootstrap.servers=127.0.0.1:9")
    assert code == 11, "the first failure counts"
    assert "is locked by kbackup backup on" in steps["archive: lease"]["detail"]
    assert steps["target: reach"]["exit_code"] == 14
    assert steps["target: transactions"]["status"] == "skipped"
