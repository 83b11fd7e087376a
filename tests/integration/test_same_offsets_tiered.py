"""Same offsets in topics whose older segments go to remote storage: fillers must not go there."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbackup.kafka.control.cluster import Cluster
from scripts.dev import tools
from scripts.dev.jars import kafka_jars
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.java import compiled
from tests.support.truth import log_starts, read_topic

REMOTE = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "NoRemoteStorage",
    "remote.log.metadata.manager.listener.name": "INTERNAL",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
}


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("tiered")
    for jar in kafka_jars().iterdir():
        (folder / jar.name).symlink_to(jar)
    pack = str(Path(tools.java()).resolve().with_name("jar"))
    with compiled("NoRemoteStorage.java", jars=(kafka_jars,)) as java:
        argv = [pack, "--create", "--file", str(folder / "no-remote-storage.jar"), "-C", str(java.folder), "."]
        subprocess.run(argv, check=True, capture_output=True)
    with Broker(REMOTE, jars=lambda: folder) as running:
        yield running


def test_a_tiered_topic_that_does_not_begin_at_0_is_held_back_with_a_way_that_works(
    tiered: Broker, broker: Broker, kbackup: Kbackup, archive: Archive
) -> None:
    whole, late = (f"{name}-{secrets.token_hex(4)}" for name in ("whole", "late"))
    for name in (whole, late):
        broker.create_topic(name, 1)
        topics.produce(broker, name, 0, topics.numbered(30))
    topics.delete_records(broker, late, {0: 10})
    kbackup.backup(archive, "-t", whole, "-t", late)
    options = ("--same-offsets", "--bootstrap-server", tiered.bootstrap, "--no-groups")

    restored = kbackup.restore(archive, *options, "--topic-config", "remote.storage.enable=true", code=3)
    (failed,) = restored["failed"]
    assert failed["source"] == late
    assert "would go to remote storage" in failed["reason"]
    assert "--topic-config remote.storage.enable=" in failed["hint"]
    cluster = Cluster({"bootstrap.servers": tiered.bootstrap}, "target")
    assert late not in cluster.topic_names()
    assert cluster.topic_configs([whole])[whole]["remote.storage.enable"] == "true"
    assert read_topic(tiered.bootstrap, whole) == read_topic(broker.bootstrap, whole)

    kbackup.restore(archive, *options, "-t", late, "--topic-config", "remote.storage.enable=")
    assert read_topic(tiered.bootstrap, late) == read_topic(broker.bootstrap, late)
    assert log_starts(tiered.bootstrap, late) == {0: 10}
    topics.set_config(tiered, late, "remote.storage.enable", "true")
    assert cluster.topic_configs([late])[late]["remote.storage.enable"] == "true"
