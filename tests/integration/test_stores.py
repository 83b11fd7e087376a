"""Archives in the clouds of Azure and Google: made in the one, copied to the other, and restored from there."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kbackup.store.crypt.kek import generate_key
from scripts.dev.azurite import Azurite
from scripts.dev.gcs import FakeGcs
from scripts.dev.kafka import Broker
from tests.integration.conftest import Kbackup
from tests.support.truth import assert_restored, read_topic


@pytest.fixture
def sell(broker: Broker) -> Callable[[str, int], None]:
    producer = Producer(broker.client())

    def sell(topic: str, count: int) -> None:
        for number in range(count):
            producer.produce(topic, secrets.token_bytes(200), str(number), number % 2)
        assert producer.flush(30) == 0

    return sell


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_from_cloud_to_cloud(
    encrypted: bool,
    broker: Broker,
    azurite_server: Azurite,
    fakegcs_server: FakeGcs,
    kbackup: Kbackup,
    sell: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    topic, name = f"cloud-{secrets.token_hex(4)}", f"archive-{secrets.token_hex(4)}"
    azurite_server.create_container(name)
    fakegcs_server.create_bucket(name)
    for key, value in azurite_server.options.items():
        monkeypatch.setenv(f"KBACKUP_AZURE_{key.upper()}", value)
    monkeypatch.setenv("KBACKUP_GCS_ENDPOINT_URL", fakegcs_server.endpoint_url)
    if encrypted:
        (tmp_path / "key").write_text(generate_key())
        monkeypatch.setenv("KBACKUP_ENCRYPTION_KEY", f"file:{tmp_path}/key")
    made, copy = f"az://{azurite_server.account}/{name}/kafka", f"gs://{name}/kafka"
    broker.create_topic(topic, 2, config={"retention.ms": "-1"})
    for count in (700, 300):
        sell(topic, count)
        kbackup.run("backup", "--archive", made, "--topic", topic)
        assert kbackup.run("copy", copy, "--archive", made)["restore_points"]
    for place in (made, copy):
        assert kbackup.run("verify", place)["findings"] == []
    kbackup.run("restore", copy, "--map", f"{topic}={topic}-back")
    assert_restored(read_topic(broker.bootstrap, topic), read_topic(broker.bootstrap, f"{topic}-back"))
