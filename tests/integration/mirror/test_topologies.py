"""Flows between three clusters, and where records come out."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kbackup.archive.reader import open_archive
from kbackup.errors import ClusterError
from kbackup.store import open_store
from scripts.dev.kafka import Broker
from tests.conftest import Bucket
from tests.integration.mirror.conftest import Mirror
from tests.integration.topics import produce
from tests.support.truth import read_topic


def values(broker: Broker, topic: str) -> dict[int, list[bytes | None]]:
    return {partition: [r.value for r in records] for partition, records in read_topic(broker.bootstrap, topic).items()}


def topics_of(broker: Broker, name: str) -> set[str]:
    from kbackup.kafka.control.cluster import Cluster

    return {topic for topic in Cluster(broker.client(), "target").topic_names() if topic.endswith(name)}


@pytest.fixture
def name(clusters: Mapping[str, Broker]) -> str:
    """A topic in each cluster, with records of its own."""
    made = f"t-{secrets.token_hex(4)}"
    for alias, broker in clusters.items():
        broker.create_topic(made, 2)
        produce(broker, made, 0, [f"{alias}{n}".encode() for n in range(5)])
        produce(broker, made, 1, [f"{alias}'".encode()])
    return made


def test_one_way_goes_on_where_it_was(mirror: Mirror, name: str) -> None:
    file = mirror.file(f"A->B.enabled = true\ntopics = {name}\n", "A", "B")
    planned = mirror(file, "--dry-run")["flows"][0]
    assert planned["restore_point"] is None
    assert mirror.remote("A", name) in planned["created"]
    source, target = mirror.brokers["A"], mirror.brokers["B"]
    assert not topics_of(target, mirror.remote("A", name)), "a dry run makes nothing"
    report = mirror.once(file)["apply A->B"]
    assert values(target, mirror.remote("A", name)) == values(source, name)
    assert report["records"] >= 6
    produce(source, name, 0, [b"later"])
    assert mirror.once(file)["apply A->B"]["records"] >= 1
    assert values(target, mirror.remote("A", name)) == values(source, name)
    assert mirror.once(file, "--apply")["apply A->B"]["records"] == 0
    assert mirror.remote("A", name) not in mirror(file, "--dry-run")["flows"][0]["created"]


def test_a_dry_run_names_internal_topics_and_asks_no_more_clusters_than_its_half(mirror: Mirror, name: str) -> None:
    both = mirror.file(f"A->B.enabled = true\ntopics = {name}\n", "A", "B")
    a, b = mirror.named("A"), mirror.named("B")
    take, apply = (mirror.folder / f"{half}.properties" for half in ("take", "apply"))
    take.write_text(both.read_text().replace(f"{b}.bootstrap.servers", "# "))
    apply.write_text(both.read_text().replace(f"{a}.bootstrap.servers", "# "))
    planned = mirror(take, "--dry-run", "--take")["flows"][0]
    assert [t["remote"] for t in planned["topics"] if t["source"] == name] == [mirror.remote("A", name)]
    assert planned["created"] is None
    assert internal_topics(planned) == {
        ("heartbeats", b, "apply", None),
        (f"{a}.heartbeats", b, "apply", None),
        (f"{a}.checkpoints.internal", b, "apply", None),
        (f"mm2-offset-syncs.{a}.internal", b, "apply", None),
        ("heartbeats", a, "take", "heartbeats" in topics_of(mirror.brokers["A"], "heartbeats")),
    }
    mirror.once(both)
    of_apply = {
        ("heartbeats", b, "apply", True),
        (f"{a}.heartbeats", b, "apply", True),
        (f"{a}.checkpoints.internal", b, "apply", True),
        (f"mm2-offset-syncs.{a}.internal", b, "apply", True),
    }
    assert internal_topics(mirror(apply, "--dry-run", "--apply")["flows"][0]) == of_apply
    of_take = {("heartbeats", a, "take", True)}
    assert internal_topics(mirror(both, "--dry-run")["flows"][0]) == of_apply | of_take


def internal_topics(planned: dict[str, Any]) -> set[tuple[str, str, str, bool | None]]:
    return {(t["topic"], t["cluster"], t["half"], t["exists"]) for t in planned["internal"]}


def test_both_ways_nothing_comes_back(mirror: Mirror, name: str) -> None:
    file = mirror.file(f"A->B.enabled = true\nB->A.enabled = true\ntopics = (.*\\.)?{name}\n", "A", "B")
    for _ in range(2):
        mirror(file, "--once")
    a, b = mirror.brokers["A"], mirror.brokers["B"]
    assert values(b, mirror.remote("A", name)) == values(a, name)
    assert values(a, mirror.remote("B", name)) == values(b, name)
    assert topics_of(a, name) == {name, mirror.remote("B", name)}
    assert topics_of(b, name) == {name, mirror.remote("A", name)}


def test_fan_out_takes_once(mirror: Mirror, name: str) -> None:
    file = mirror.file(f"A->B.enabled = true\nA->C.enabled = true\ntopics = {name}\n", "A", "B", "C")
    assert sorted(mirror.once(file)) == ["apply A->B", "apply A->C", "take A"]
    for alias in "BC":
        assert values(mirror.brokers[alias], mirror.remote("A", name)) == values(mirror.brokers["A"], name)


def test_chain_passes_records_and_heartbeats_on(mirror: Mirror, name: str) -> None:
    file = mirror.file(f"A->B.enabled = true\nB->C.enabled = true\ntopics = (.*\\.)?{name}\n", "A", "B", "C")
    mirror(file, "--once")
    c = mirror.brokers["C"]
    assert values(c, mirror.remote("B", mirror.remote("A", name))) == values(mirror.brokers["A"], name)
    assert values(c, mirror.remote("B", name)) == values(mirror.brokers["B"], name)
    assert topics_of(c, mirror.remote("B", mirror.remote("A", "heartbeats")))


def test_two_archives_in_one_bucket(mirror: Mirror, name: str, bucket: Bucket) -> None:
    text = f"A->C.enabled = true\nB->C.enabled = true\ntopics = {name}\nkbackup.archive = {bucket.url}/x/{{source}}\n"
    config = mirror.folder / "kbackup.toml"
    config.write_text(bucket.server.toml)
    mirror.once(mirror.file(text, "A", "B", "C"), "--config", str(config))
    for alias in "AB":
        assert values(mirror.brokers["C"], mirror.remote(alias, name)) == values(mirror.brokers[alias], name)


def test_identity_keeps_names_one_way_and_refuses_loops(mirror: Mirror, name: str) -> None:
    policy = "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
    only = f"{name}-only-a"
    mirror.brokers["A"].create_topic(only)
    produce(mirror.brokers["A"], only, 0, [b"x"])
    mirror(mirror.file(f"A->B.enabled = true\ntopics = {only}\n{policy}", "A", "B"), "--once")
    assert values(mirror.brokers["B"], only) == {0: [b"x"]}
    loop = mirror.file(f"A->B.enabled = true\nB->A.enabled = true\n{policy}", "A", "B")
    assert "would be mirrored in a circle" in mirror(loop, "--once", code=2)["error"]["message"]


@pytest.mark.soak
def test_metrics_tell_the_archives_of_two_sources_apart(mirror: Mirror) -> None:
    name = f"m-{secrets.token_hex(4)}"
    for count, alias in enumerate("AB", start=1):
        mirror.brokers[alias].create_topic(f"{name}-{count}", 1)
        produce(mirror.brokers[alias], f"{name}-{count}", 0, [b"x"] * count)
    flows = "".join(f"{flow}.enabled = true\n" for flow in ("A->B", "B->A"))
    file = mirror.file(f"{flows}A->B.topics = {name}-1\nB->A.topics = {name}-2\n", "A", "B")
    metrics = file.with_suffix(".prom")
    mirror(file, "--once", "--metrics-file", str(metrics))
    counted = {
        sample.labels["archive"]: sample.value
        for family in text_string_to_metric_families(metrics.read_text())
        for sample in family.samples
        if sample.name == "kbackup_segments_total"
    }
    written = {url: open_archive(open_store(url)).state.segments.columns("key")[0] for url in counted}
    assert {url.rpartition("/")[2] for url in counted} == {mirror.named("A"), mirror.named("B")}
    assert counted == {url: len(keys) for url, keys in written.items()}
    assert all(any(name in key for key in keys) for keys in written.values()), written


def test_an_internal_topic_that_collides_is_named_with_what_to_do(mirror: Mirror) -> None:
    name = f"i-{secrets.token_hex(4)}"
    mirror.brokers["A"].create_topic(name, 1)
    mirror.brokers["B"].create_topic(f"{mirror.named('A')}_checkpoints_internal", 1)
    file = mirror.file(f"A->B.enabled = true\ntopics = {name}\n", "A", "B")
    error = mirror(file, "--once", code=ClusterError.exit_code)["error"]
    assert "collides" in error["message"]
    assert f"{mirror.named('A')}.checkpoints.internal" in error["hint"]
    assert "replication.factor" not in error["hint"]
