"""`check` against a real broker and a real S3 server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from kbackup.archive.lease import HeldLease
from kbackup.store import open_store
from scripts.dev.kafka import Broker
from tests.conftest import Bucket
from tests.integration.backed_up import commit, produce, write_config
from tests.integration.conftest import run_command


@pytest.fixture
def topic(broker: Broker, topic_name: str) -> str:
    broker.create_topic(topic_name, partitions=2)
    produce(broker, topic_name, 1, range(10))
    commit(broker, f"reader-{topic_name}", topic_name, {1: 4})
    return topic_name


@pytest.fixture
def config(broker: Broker, bucket: Bucket, tmp_path: Path) -> Path:
    return write_config(tmp_path / "kbackup.toml", broker, bucket.server, bucket.name)


def told(spark: SparkSession, config: Path, *args: str) -> tuple[int, dict[str, Any]]:
    """Exit code and steps by their names."""
    outcome = run_command(spark, config, ("check", *args))
    assert outcome.document["exit_code"] == outcome.code
    return outcome.code, {step["name"]: step for step in outcome.document["steps"]}


def test_a_check_of_a_working_setup_finds_every_step_ok(
    broker: Broker, bucket: Bucket, config: Path, topic: str, spark: SparkSession
) -> None:
    before = set(AdminClient(broker.client(log_level=0)).list_topics(timeout=30).topics)
    only = ["-t", topic, "-g", f"reader-{topic}"]
    code, steps = told(spark, config, *only, "--target", "--spark")
    failed = {name: s["status"] for name, s in steps.items() if s["status"] != "ok"}
    assert not failed, f"steps that did not succeed: {failed}"
    assert code == 0
    assert steps["source: topics"]["detail"].startswith("1 of ")
    assert steps["source: offsets"]["detail"] == "2 partitions"
    assert steps["source: read"]["detail"] == "1 record from 1 topic"
    assert steps["source: groups"]["detail"].startswith("1 with offsets")
    assert {"target: create topics", "target: transactions", "spark: run a task"} <= steps.keys()
    assert list(open_store(bucket.url, {"s3": bucket.options}).list()) == []
    own = {"__consumer_offsets", "__transaction_state"}
    assert set(AdminClient(broker.client(log_level=0)).list_topics(timeout=30).topics) - own == before - own


def test_steps_go_on_after_a_failure(config: Path, topic: str, spark: SparkSession) -> None:
    code, steps = told(spark, config, "-t", topic, "--set", "s3.secret_access_key=wrong")
    assert code == 14
    assert steps["archive: open"]["status"] == "failed"
    assert steps["archive: open"]["hint"]
    assert steps["archive: delete"]["status"] == "skipped"
    assert steps["source: read"]["status"] == "ok"


def test_a_topic_that_is_not_there(config: Path, spark: SparkSession) -> None:
    code, steps = told(spark, config, "-t", "no-such-topic")
    assert code == 2
    assert "there is no topic no-such-topic" in steps["source: topics"]["detail"]
    assert steps["source: topics"]["hint"]
    assert steps["source: groups"]["status"] == "skipped"
    code, steps = told(spark, config, "-t", "/no such/")
    assert (code, steps["source: topics"]["status"]) == (2, "failed")
    assert "no topic in the source cluster matches /no such/" in steps["source: topics"]["detail"]
    code, steps = told(spark, config, "--exclude-topic", "/.*/", "-g", "no-such-group")
    assert (code, steps["source: topics"]["status"]) == (2, "warning")
    assert steps["source: read"]["detail"].startswith("nothing to read")
    assert "there is no group no-such-group" in steps["source: groups"]["detail"]


def test_a_held_lease_and_a_target_that_is_not_there(
    bucket: Bucket, config: Path, topic: str, spark: SparkSession
) -> None:
    store = open_store(f"{bucket.url}/some/prefix", {"s3": bucket.options})
    with HeldLease(store, "kbackup backup", 60):
        code, steps = told(spark, config, "-t", topic, "--target", "--set", "target.bootstrap.servers=127.0.0.1:9")
    assert code == 11, "the first failure counts"
    assert "is locked by kbackup backup on" in steps["archive: lease"]["detail"]
    assert steps["target: reach"]["exit_code"] == 14
    assert steps["target: transactions"]["status"] == "skipped"
