"""The examples of `infra/docs/python.md`, run one after another as they stand there, with broker, bucket and Spark."""

from __future__ import annotations

import secrets
import tomllib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from scripts.dev.kafka import Broker
from scripts.dev.s3 import Minio
from tests.integration.backed_up import commit, produce
from tests.integration.conftest import servers_config
from tests.integration.topics import wait_until
from tests.project.docs.documents import ROOT, blocks

EXAMPLES = [code.text for code in blocks("python") if code.document == ROOT / "infra" / "docs" / "python.md"]


class Examples:
    """Runs examples in one namespace, on a topic, a group and an archive of its own."""

    def __init__(self, broker: Broker, url: str) -> None:
        self.broker, self.url = broker, url
        self.topic, self.group = (f"{name}-{secrets.token_hex(4)}" for name in ("orders", "shipping"))
        self.namespace: dict[str, Any] = {}

    def run(self, words: str) -> None:
        """Run the example that has these words."""
        (text,) = [text for text in EXAMPLES if words in text]
        places = {"s3://my-backups/kafka": self.url, '"orders': f'"{self.topic}', '"shipping': f'"{self.group}'}
        for name, place in places.items():
            text = text.replace(name, place)
        exec(compile(text.replace("@pytest.fixture\n", ""), "python.md", "exec"), self.namespace)

    def __getitem__(self, name: str) -> Any:
        return self.namespace[name]


def test_the_examples_of_the_library_run(
    broker: Broker,
    minio_server: Minio,
    spark: SparkSession,
    archive_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"s3://{archive_bucket}/{secrets.token_hex(6)}"
    config = servers_config(broker, minio_server)
    examples = Examples(broker, url)
    (tmp_path / "kbackup.toml").write_text(
        f'archive = "{url}"\n{config}\n[backup]\ntopics = ["{examples.topic}"]\ngroups = ["{examples.group}"]\n'
    )
    monkeypatch.chdir(tmp_path)
    for name, value in tomllib.loads(config)["s3"].items():  # an example gives tables in place of the file
        monkeypatch.setenv(f"KBACKUP_S3_{name.upper()}", value)
    broker.create_topic(examples.topic, partitions=2)
    produce(broker, examples.topic, 0, range(100))
    produce(broker, examples.topic, 1, range(30))
    commit(broker, examples.group, examples.topic, {0: 40})

    examples.run("def back_up")
    document = examples["back_up"]("nightly")
    assert (document["restore_point"], document["totals"]["records"]) == (1, 130)

    examples.run("archive.topics")
    assert examples["archive"].topics == (examples.topic,)
    assert [*examples["archive"].groups(examples.group).values()] == [40]
    examples.run("eu-central-1")
    assert examples["archive"].id
    examples.run("duckdb")
    assert (len(examples["orders"]), examples["orders_table"].num_rows) == (130, 130)

    admin = AdminClient(broker.client())
    admin.delete_topics([examples.topic])[examples.topic].result(30)
    wait_until(lambda: examples.topic not in admin.list_topics(timeout=10).topics)
    examples.run("dry_run=True")
    plan, report = examples["plan"], examples["report"]
    assert (plan.status, plan.records, report.status, report.records) == ("planned", 130, "restored", 130)
    assert report.topics[0].target == f"{examples.topic}-practice"

    examples.run("restored_orders")
    assert examples["restored_orders"](broker.bootstrap) == f"{examples.topic}-in-test"

    examples.run("kbackup.verify")
    assert examples["verified"].findings == ()
    assert examples["status"].level == "ok"
    examples.run("before-upgrade")
    assert "there is no restore point before-upgrade" in capsys.readouterr().out
    assert spark.range(1).count() == 1, "the session of this process was used, and stays"
