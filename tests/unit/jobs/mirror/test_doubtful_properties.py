"""Keys of MirrorMaker 2's properties file that are refused, have no meaning or are doubtful."""

from __future__ import annotations

import pytest

from kbackup.errors import UsageError
from kbackup.jobs.mirror.properties import load_flows
from tests.support.mirrors import CLUSTERS, flow_of

REFUSED = {
    "transforms = mask": "remove the key",
    "A->B.transforms.mask.type = x": "remove the key",
    "predicates = p": "remove the key",
    "A->B.topcis = x": "did you mean A->B.topics?",
    "topic = x": "did you mean topics?",
    "A.bootstrap.server = a:1": "did you mean A.bootstrap.servers?",
    "emit.heartbeat.enabled = false": "did you mean emit.heartbeats.enabled?",
    "sync.group.offset.enabled = true": "did you mean sync.group.offsets.enabled?",
    "A->C.enabled = true": "write one of A, B",
    "C->B.topics = x": "write one of A, B",
    "C.bootstrap.servers = c:1": "write one of A, B",
    "C.consumer.fetch.max.bytes = 1": "write one of A, B",
    "C.kbackup.archive = x": "write one of A, B",
    "topics.blacklist = x": "topics.exclude",
    "A->B.groups.blacklist = x": "groups.exclude",
    "rename.topics = false": "IdentityReplicationPolicy",
    "readahead.queue.capacity = 1": "remove",
    "heartbeats.topic.retention.ms = 1": "retention.ms",
    "emit.heartbeats = false": "emit.heartbeats.enabled",
    "replication.policy.class = org.apache.kafka.connect.mirror.LegacyReplicationPolicy": "IdentityReplicationPolicy",
    "replication.policy.class = com.example.Mine": "DefaultReplicationPolicy",
    "replication.policy.separator =": "separator",
    "topic.filter.class = com.example.Mine": "topics.exclude",
    "connector.class = org.apache.kafka.connect.mirror.MirrorSinkConnector": "kbackup mirror",
    "cluster.A.broker.list = a:1": "A.bootstrap.servers",
    "kbackup.archiv = x": "kbackup.archive",
    "A->B.kbackup.nothing = x": "kbackup.archive",
    "kbackup.on.recreate = wait": "continue or stop",
    "topics = *": "'.*'",
    "topics = a[b": "not closed",
    "topics = (?s)a": "(?i)",
    "offset.lag.max = many": "whole number",
    "emit.heartbeats.enabled = yes": "true or false",
    "use.defaults.from = both": "source or target",
    "A.ssl.truststore.location = /x.jks": "PEM",
    "A.sasl.client.callback.handler.class = com.example.Mine": "Java",
    "A.ssl.nonsense = 1": "librdkafka",
    "topics = ${env:NOT_SET}": "set the variable",
    "topics = ${file:/does/not/exist}": "readable",
    "clusters = A": "two different",
    "clusters = A, B, A": "two different",
    "config.providers.v.class = com.example.Vault\nconfig.providers = v": "EnvVarConfigProvider",
}


@pytest.mark.parametrize("line", REFUSED)
def test_refused_with_what_to_write_instead(line: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_flows(CLUSTERS + line, environ={})
    key = line.partition(" ")[0]
    assert key.removeprefix("A.") in str(refused.value)
    assert REFUSED[line] in str(refused.value)


def test_mirrormakers_checkpoints_need_offset_syncs() -> None:
    lines = "A->B.emit.offset-syncs.enabled = false\nkbackup.checkpoints = mm2\n"
    with pytest.raises(UsageError) as refused:
        load_flows(CLUSTERS + lines, environ={})
    for key in ("kbackup.checkpoints: ", "A->B.emit.offset-syncs.enabled = true"):
        assert key in str(refused.value)
    only_heartbeats = CLUSTERS.replace("A->B.enabled = true", "A->B.enabled = false")
    assert not load_flows(only_heartbeats + lines, environ={}).flows
    assert flow_of(lines.replace("mm2", "exact")).checkpoint_rule == "exact"


def test_refusal_shows_no_secret() -> None:
    with pytest.raises(UsageError) as refused:
        flow_of("A.sasl.jaas.config = com.example.Module required password=hidden;")
    assert "hidden" not in str(refused.value)


def test_connect_keys_mean_nothing() -> None:
    lines = (
        *("tasks.max = 4", "key.converter = x", "dedicated.mode.enable.internal.rest = true"),
        *("offset.storage.replication.factor = 1", "B.config.storage.replication.factor = 1", "listeners = x"),
        *("admin.timeout.ms = 1", "consumer.poll.timeout.ms = 1", "A->B.tasks.max = 2", "B.group.id = x"),
        *("consumer.max.poll.records = 1", "topic.creation.enable = true", "errors.tolerance = all"),
    )
    read = load_flows(CLUSTERS + "\n".join(lines))
    keys = [line.partition(" ")[0] for line in lines]
    assert sorted(read.notes) == sorted(f"mm2.properties: {key} has no meaning here" for key in keys)
    assert read.warnings == ()


def test_doubtful_keys_are_warned_of() -> None:
    read = load_flows(CLUSTERS + "A->B.tpocis = x\nB.replication.factor = 3\nA.fetch.max.bytes = 1\n")
    text = "\n".join(read.warnings)
    assert "A->B.tpocis is no key of MirrorMaker 2: did you mean topics?" in text
    assert "B.replication.factor has no meaning, in MirrorMaker 2 neither: write it for all flows" in text
    assert "A.fetch.max.bytes has no meaning, in MirrorMaker 2 neither: write A.consumer.fetch.max.bytes" in text


def test_defaults_of_the_source_are_warned_of() -> None:
    """Nothing reads the key: MirrorMaker 2 would copy what the source's brokers have."""
    (warning,) = load_flows(CLUSTERS + "use.defaults.from = source\n").warnings
    assert warning.startswith("mm2.properties: use.defaults.from = source has no effect")
    assert load_flows(CLUSTERS + "use.defaults.from = target\n").warnings == ()
