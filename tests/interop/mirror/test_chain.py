"""A chain of two flows, as Kafka's own `RemoteClusterUtils` sees it from the last cluster."""

from __future__ import annotations

import secrets

import pytest

from tests.integration.mirror.conftest import Mirror, clusters, mirror
from tests.integration.topics import produce
from tests.support.java import Java
from tests.support.truth import Position, commit, read_topic

__all__ = ["clusters", "mirror"]


@pytest.fixture
def chain(mirror: Mirror) -> Mirror:
    """The same clusters by aliases of their own: other tests leave topics in them."""
    aliases = [f"{letter}{secrets.token_hex(3)}" for letter in "XYZ"]
    return Mirror(dict(zip(aliases, mirror.brokers.values(), strict=True)), mirror.spark, mirror.folder)


def test_java_finds_upstream_clusters_hops_and_offsets(chain: Mirror, java: Java) -> None:
    x, y, z = chain.brokers
    topic, group = f"chained-{x}", f"readers-{x}"
    chain.brokers[x].create_topic(topic)
    produce(chain.brokers[x], topic, 0, [f"{n}".encode() for n in range(30)])
    commit(chain.brokers[x].bootstrap, group, {(topic, 0): Position(17)})
    flows = f"{x}->{y}.enabled = true\n{y}->{z}.enabled = true\ntopics = (.*\\.)?{topic}\n"
    chain(chain.file(flows, x, y, z), "--once")

    end = chain.brokers[z].bootstrap
    report = java.run("RemoteClusters", end, y, "topics", f"hops {x}", f"hops {y}", "hops nowhere").splitlines()
    answers = {line.partition(" ")[0]: set(line.split()[1:]) for line in report[:3]}
    assert {f"{y}.heartbeats", f"{y}.{x}.heartbeats"} <= answers["heartbeats"]
    assert f"{y}.checkpoints.internal" in answers["checkpoints"]
    assert {x, y} <= answers["upstream"]
    assert report[3:] == [f"hops {x} 2", f"hops {y} 1", "hops nowhere -1"]

    middle = chain.brokers[y].bootstrap
    (offset,) = java.run("RemoteClusters", middle, x, f"offsets {group}").splitlines()
    remote = f"{x}.{topic}"
    (place,) = [r.offset for r in read_topic(middle, remote)[0] if r.value == b"17"]
    assert offset.split()[1:5] == [group, remote, "0", str(place)]
