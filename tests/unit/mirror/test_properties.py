"""MirrorMaker 2's properties file: precedence, defaults, references, and keys that are refused or mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.errors import UsageError
from kbackup.kafka.client import admin_properties, without_admin
from kbackup.mirror.flow import Clock, DefaultPolicy, IdentityPolicy
from kbackup.mirror.properties.flows import load_flows
from kbackup.mirror.properties.keys import FLOW_KEYS
from tests.support.flow_maps import CLUSTERS, flow_of


def test_defaults_are_those_of_mirrormaker_2() -> None:
    flow = flow_of()
    assert (flow.source, flow.target, flow.archive) == ("A", "B", None)
    assert flow.policy == DefaultPolicy(".", True)
    assert flow.source_properties == {"bootstrap.servers": "a:9092"}
    assert flow.target_properties == {"bootstrap.servers": "b:9092"}
    names = ("orders", "mm2-offsets.A.internal", "x.replica", "__consumer_offsets", "mm2x")
    assert [name for name in names if flow.topics(name)] == ["orders", "mm2x"]
    groups = ("app", "console-consumer-7", "connect-sink", "__x")
    assert [group for group in groups if flow.groups(group)] == ["app"]
    assert flow.excluded_configs("min.insync.replicas")
    assert not flow.excluded_configs("retention.ms")
    assert (flow.replication_factor, flow.heartbeats_replication_factor, flow.offset_lag_max) == (2, 3, 100)
    assert (flow.emit_heartbeats, flow.emit_checkpoints) == (Clock(True, 1), Clock(True, 60))
    assert (flow.sync_group_offsets, flow.refresh_topics) == (Clock(False, 60), Clock(True, 600))
    assert (flow.use_defaults_from, flow.offset_syncs_location) == ("target", "target")
    assert (flow.checkpoint_rule, flow.on_recreate, flow.emit_offset_syncs) == ("exact", "continue", True)


def test_flow_goes_before_all_flows() -> None:
    flows = load_flows(
        "clusters = A, B, C\nA->B.enabled = true\nA->C.enabled = true\ntopics = all.*\nA->B.topics = orders,pay.*\n"
        "replication.factor = 3\nA->C.replication.factor=-1\nemit.heartbeats.enabled = false\n"
    )
    to_b, to_c = flows.flows
    assert [to_b.topics(name) for name in ("orders", "pay.x", "all.x")] == [True, True, False]
    assert to_c.topics("all.x")
    assert (to_b.replication_factor, to_c.replication_factor) == (3, -1)
    assert flows.heartbeat_flows == ()


def test_pairs_that_are_not_enabled_emit_heartbeats() -> None:
    """MirrorMaker 2 writes heartbeats into A for B->A, so that A has a topic `heartbeats` to mirror to B."""
    (flow,) = load_flows(CLUSTERS + "B->A.emit.heartbeats.interval.seconds = 5\n").heartbeat_flows
    assert (flow.name, flow.emit_heartbeats.seconds) == ("B->A", 5)
    for off in ("enabled = false", "interval.seconds = -1"):
        assert not load_flows(f"{CLUSTERS}B->A.emit.heartbeats.{off}\n").heartbeat_flows


@pytest.mark.parametrize("key", [key for key in FLOW_KEYS if key.endswith(".interval.seconds")])
def test_a_negative_interval_disables_its_task(key: str) -> None:
    name = key.removesuffix(".interval.seconds")
    clock = name.replace(".", "_")
    assert getattr(flow_of(f"{name}.enabled = true\n{key} = 7\n"), clock) == Clock(True, 7)
    assert not getattr(flow_of(f"{name}.enabled = true\n{key} = -1\n"), clock).enabled


def test_empty_enabled_is_the_default() -> None:
    flows = load_flows("clusters = A, B\nA->B.enabled =\nB->A.enabled = true\n").flows
    assert [flow.name for flow in flows] == ["B->A"]


def test_client_properties_merge_as_in_mirrormaker_2() -> None:
    flow = flow_of(
        "security.protocol = SASL_SSL\nB.security.protocol = SSL\nA.sasl.mechanism = PLAIN\n"
        "A.sasl.jaas.config = org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="${env:SECRET}";\n'
        "A.consumer.fetch.min.bytes = 7\nA->B.consumer.fetch.min.bytes = 8\nA->B.consumer.check.crcs = true\n"
        "A->B.source.consumer.fetch.max.wait.ms = 9\nB.producer.linger.ms = 3\nA.producer.linger.ms = 4\n"
        "B.batch.size = 10\nA.consumer.max.poll.records = 5",
        environ={"SECRET": "${env:NOT_AGAIN}"},
    )
    assert flow.source_properties == {
        "bootstrap.servers": "a:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "${env:NOT_AGAIN}",
        "fetch.min.bytes": "7",  # the cluster's wins over the flow's, but for source.consumer.…
        "check.crcs": "true",
        "fetch.wait.max.ms": "9",
    }
    assert flow.target_properties == {"bootstrap.servers": "b:9092", "security.protocol": "SSL", "linger.ms": "3"}
    assert "sasl.password" not in repr(flow)


def test_admin_client_has_its_own_properties() -> None:
    """As in MirrorMaker 2: what all clients of the cluster share, and `admin.…` in place of `consumer.…`."""
    flow = flow_of(
        "A.security.protocol = SASL_PLAINTEXT\nA.sasl.mechanism = PLAIN\nA.consumer.client.id = reads\n"
        "A.consumer.fetch.min.bytes = 7\nA.admin.client.id = asks\nA->B.admin.request.timeout.ms = 5000\n"
        "A->B.source.admin.retries = 3\nA->B.target.admin.client.id = writes\nB.admin.metadata.max.age.ms = 900\n"
    )
    shared = {"bootstrap.servers": "a:9092", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    assert flow.source_properties is not None
    others = without_admin(flow.source_properties)
    assert others == shared | {"client.id": "reads", "fetch.min.bytes": "7"}
    admin = admin_properties(flow.source_properties)
    assert admin == shared | {"client.id": "asks", "socket.timeout.ms": "5000"}
    assert flow.target_properties is not None
    shared = {"bootstrap.servers": "b:9092"}
    assert without_admin(flow.target_properties) == shared
    own = {"client.id": "writes", "socket.timeout.ms": "5000", "metadata.max.age.ms": "900"}
    assert admin_properties(flow.target_properties) == shared | own
    plain = flow_of("A.consumer.client.id = reads\n").source_properties
    assert plain is not None
    assert without_admin(plain) == admin_properties(plain) == plain


def test_admin_properties_are_checked() -> None:
    with pytest.raises(UsageError, match=r"ssl\.nonsense: librdkafka has no such property"):
        flow_of("A.admin.ssl.nonsense = 1\n")


def test_cluster_without_an_address_has_no_client() -> None:
    flow = flow_of("clusters = A, B\nB.bootstrap.servers = b:9092\nA->B.enabled = true")
    assert flow.source_properties is None


def test_alias_with_a_dot_in_it_is_not_its_beginning() -> None:
    flow = flow_of(
        "clusters = us, us.west\nus.west.bootstrap.servers = w:1\nus.bootstrap.servers = u:1\n"
        "us->us.west.enabled = true\nus->us.west.topics = x\nemit.heartbeats.enabled = false\n"
    )
    assert (flow.source, flow.target, flow.topics("y")) == ("us", "us.west", False)
    assert flow.target_properties == {"bootstrap.servers": "w:1"}


@pytest.mark.parametrize("alias", ["topics", "groups", "replication", "sync", "consumer", "ssl", "kbackup"])
def test_an_alias_that_begins_keys_for_all_flows_is_refused(alias: str) -> None:
    with pytest.raises(UsageError, match=f"the alias '{alias}' is also the first word of {alias}"):
        flow_of(f"clusters = {alias}, B\n")


def test_aliases_source_and_target_have_the_keys_of_their_clusters() -> None:
    flow = flow_of(
        "clusters = source, target\nsource.bootstrap.servers = s:1\ntarget.bootstrap.servers = t:1\n"
        "source.consumer.client.id = reads\nsource->target.enabled = true\n"
    )
    assert flow.source_properties == {"bootstrap.servers": "s:1", "client.id": "reads"}


def test_two_sources_whose_topics_could_have_one_name_are_refused() -> None:
    text = (
        "clusters = us, us.west, C\nus.bootstrap.servers = u:1\nus.west.bootstrap.servers = w:1\n"
        "C.bootstrap.servers = c:1\nus->C.enabled = true\nus.west->C.enabled = true\n"
    )
    with pytest.raises(UsageError, match=r"topics of us and us\.west can have one name in C"):
        flow_of(text)
    assert flow_of(text + "replication.policy.separator = _\n").source == "us"


@pytest.mark.parametrize(
    ("reference", "providers"),
    [
        ("${env:NAME}", ""),
        ("${vars:NAME}", "config.providers = vars\nconfig.providers.vars.class = {package}EnvVarConfigProvider\n"),
        ("${file:{folder}/secrets.properties:name}", ""),
        ("${file:{folder}/name}", ""),
        ("${dir:{folder}:name}", "config.providers=dir\nconfig.providers.dir.class={package}DirectoryConfigProvider\n"),
    ],
)
def test_references_to_config_providers_are_resolved(reference: str, providers: str, tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("name = orders\n")
    (tmp_path / "name").write_text("orders\n")
    text = providers.replace("{package}", "org.apache.kafka.common.config.provider.")
    text += f"topics = {reference.replace('{folder}', str(tmp_path))}"
    flow = flow_of(text, environ={"NAME": "orders"})
    assert flow.topics("orders")
    assert not flow.topics("other")


def test_the_replication_policy_is_read_from_the_properties() -> None:
    policy = "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
    assert flow_of(policy).policy == IdentityPolicy(".", True, "A")
    text = "replication.policy.separator = _\nreplication.policy.internal.topic.separator.enabled = false"
    assert flow_of(text).policy == DefaultPolicy("_", False)


def test_archive_is_of_the_source() -> None:
    text = "kbackup.archive = s3://bucket/{source}\n"
    assert flow_of(text).archive == "s3://bucket/A"
    assert flow_of(text + "A.kbackup.archive = s3://a\n").archive == "s3://a"
    assert flow_of(text + "A.kbackup.archive = s3://a\nA->B.kbackup.archive = s3://b\n").archive == "s3://b"
    assert flow_of(text, archive="/tmp/{source}").archive == "/tmp/A"


@pytest.mark.parametrize(
    ("line", "at_end"),
    [
        ("", False),
        ("A.consumer.auto.offset.reset = latest", True),
        ("A->B.consumer.auto.offset.reset = latest", True),
        ("A->B.source.consumer.auto.offset.reset = latest", True),
        ("A.consumer.auto.offset.reset = latest\nA->B.source.consumer.auto.offset.reset = earliest", False),
        ("B.consumer.auto.offset.reset = latest", False),
    ],
)
def test_where_the_first_round_of_a_topic_starts(line: str, at_end: bool) -> None:
    read = load_flows(CLUSTERS + line, environ={})
    assert read.flows[0].starts_at_end is at_end
    assert not [note for note in read.notes if "auto.offset.reset" in note]


# Keys of MirrorMaker 2's properties file that are refused, have no meaning or are doubtful.


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
    "kbackup.schemas = map": "A.kbackup.registry.url",
    "A.kbackup.registry.uri = x": "kbackup.registry.url",
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
