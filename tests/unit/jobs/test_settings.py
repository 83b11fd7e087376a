"""Which ACLs, configs and users a target lacks, under its own names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.models import Metadata
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.errors import RefusedError
from kbackup.jobs.settings.documents import SettingsBefore, SettingsCaptures
from kbackup.jobs.settings.plan import (
    HOST_SPECIFIC,
    Changes,
    ConfigChange,
    QuotaChange,
    SettingsReport,
    SkippedSetting,
    TargetNames,
    acl_command,
    config_command,
    map_acls,
    plan_settings,
    quota_command,
)
from kbackup.jobs.settings.undo import check_planned, undo_of
from kbackup.metadata.differences import entity_key, quota_values
from kbackup.metadata.entities import (
    Acl,
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    GroupConfig,
    QuotaKey,
    Reading,
    ScramUser,
    not_carried_entry,
)
from tests.support.memory_store import MemoryStore

SAME = TargetNames({"orders": "orders"}, frozenset(), {"billing": "billing"})
RENAMED = TargetNames(
    {"orders": "restored.orders", "swap": "other", "other": "swap"}, frozenset({"clicks"}), {"billing": "drill"}
)
EVERYTHING = ("acls", "configs", "quotas", "users")


def acl(resource: str, name: str, pattern: str = "literal", **more: str) -> Acl:
    fields = {"principal": "User:a", "host": "*", "operation": "read", "permission": "allow"} | more
    return Acl(resource=resource, name=name, pattern=pattern, **fields)


def archived(**settings: Any) -> Metadata:
    return Metadata(captured_at="then", cluster_id="source", brokers=1, topics=(), **settings)


def broker(number: int | None, name: str, value: str | None) -> BrokerConfig:
    return BrokerConfig(broker=number, name=name, value=value)


def plan(selected: Sequence[str], point: Metadata, names: TargetNames = SAME, **there: Any) -> SettingsReport:
    """Plan for a target of two brokers with the settings `there`."""
    reading = Reading(source="brokers", cluster_id="c", **there)
    return plan_settings(selected, point, names, reading, [1, 2], "h:1")


def test_configs_of_brokers_that_differ_are_planned() -> None:
    point = archived(
        broker_configs=(
            broker(None, "log.retention.ms", "1000"),
            broker(1, "log.retention.ms", "2000"),
            broker(None, "num.io.threads", "4"),
            broker(7, "num.io.threads", "5"),
            broker(1, "advertised.listeners", "INTERNET://h:1"),
            broker(2, "compression.secret", None),
            broker(1, "x.password", "hush"),
        )
    )
    existing = (broker(None, "num.io.threads", "4"), broker(2, "num.io.threads", "9"), broker(1, "other", "x"))
    planned = plan(["configs"], point, broker_configs=existing)
    assert planned.configs == (
        ConfigChange(kind="broker", owner="", name="log.retention.ms", before=None, after="1000", of_all=True),
        ConfigChange(kind="broker", owner="1", name="log.retention.ms", before=None, after="2000"),
    )
    assert {left.what: left.why for left in planned.not_carried} == {
        "config num.io.threads of broker 7": "the target has no broker 7",
        "config advertised.listeners of broker 1": "it belongs to the host that it was set on",
        "config compression.secret of broker 2": "it is sensitive: brokers never give it",
        "config x.password of broker 1": "it is sensitive: set it by hand",
    }
    done = [broker(int(c.owner) if c.owner else None, c.name, c.after) for c in planned.configs]
    again = plan(["configs"], point, broker_configs=[*existing, *done])
    assert (again.configs, again.warnings) == ((), ())


def test_a_broker_that_keeps_its_own_value_is_named() -> None:
    point = archived(broker_configs=(broker(None, "num.io.threads", "4"),))
    there = (broker(2, "num.io.threads", "9"),)
    planned = plan(["configs"], point, broker_configs=there)
    assert planned.configs == (
        ConfigChange(kind="broker", owner="", name="num.io.threads", before=None, after="4", of_all=True),
    )
    assert planned.warnings == ("broker 2 keeps num.io.threads=9, which is not what all brokers get",)


def test_quotas_that_differ_are_planned_and_others_are_left_alone() -> None:
    def quota(value: float, **entity: str | None) -> ClientQuota:
        return ClientQuota(entity=entity, quotas={"producer_byte_rate": value})  # type: ignore[arg-type]  # names

    point = archived(client_quotas=(quota(1.0, user="b o%b"), quota(2.0, user=None), quota(3.0, ip="10.0.0.1")))
    there = (quota(1.0, user="b o%b"), quota(9.0, user=None), quota(5.0, user="elsewhere"))
    planned = plan(["quotas"], point, client_quotas=there)
    name = "producer_byte_rate"
    assert planned.quotas == (
        QuotaChange(entity={"ip": "10.0.0.1"}, name=name, before=None, after=3.0),
        QuotaChange(entity={"user": None}, name=name, before=9.0, after=2.0),
    )


def test_client_metrics_that_differ_are_planned() -> None:
    point = archived(client_metrics=(ClientMetrics(name="m 1", configs={"interval.ms": "1", "metrics": "x"}),))
    there = (ClientMetrics(name="m 1", configs={"interval.ms": "2", "metrics": "x"}),)
    planned = plan(["configs"], point, client_metrics=there)
    assert planned.configs == (
        ConfigChange(kind="client metrics", owner="m 1", name="interval.ms", before="2", after="1"),
    )


def test_a_login_that_no_running_cluster_takes() -> None:
    user = ScramUser(
        user="a", mechanism="SCRAM-SHA-256", iterations=4096, salt="s", stored_key="hush", server_key="hush"
    )
    token = DelegationToken(
        id="t", owner="User:a", requester="User:a", renewers=(), issued_at=1, expires_at=2, max_at=3, hmac="hush"
    )
    planned = plan(["users"], archived(scram_users=(user,), delegation_tokens=(token,)))
    (missing,) = planned.missing
    assert "'kbackup migrate bootstrap'" in missing
    assert [skipped.what for skipped in planned.not_carried] == ["delegation token t of User:a"]
    assert "hush" not in repr(planned)


HOSTS = """
    listeners advertised.listeners listener.security.protocol.map listener.name.internal.ssl.keystore.location
    ssl.truststore.type sasl.jaas.config security.inter.broker.protocol inter.broker.listener.name log.dirs broker.rack
    metric.reporters principal.builder.class remote.log.storage.manager.class.path
"""
CLUSTERS = """
    log.retention.ms message.max.bytes num.io.threads log.cleaner.threads max.connections log.message.timestamp.type
    log.cleanup.policy leader.replication.throttled.rate
"""


@pytest.mark.parametrize("name", HOSTS.split())
def test_host_specific_configs_are_not_carried(name: str) -> None:
    assert HOST_SPECIFIC.search(name)
    planned = plan(["configs"], archived(broker_configs=(broker(1, name, "x"), broker(None, name, "y"))))
    assert planned.configs == ()
    assert len(planned.not_carried) == 2


@pytest.mark.parametrize("name", CLUSTERS.split())
def test_cluster_configs_are_not_host_specific(name: str) -> None:
    assert not HOST_SPECIFIC.search(name)


def test_configs_of_groups_follow_their_names() -> None:
    point = archived(
        group_configs=(
            GroupConfig(group="billing", name="consumer.session.timeout.ms", value="50000"),
            GroupConfig(group="elsewhere", name="consumer.session.timeout.ms", value="50000"),
        )
    )
    planned = plan(["configs"], point, RENAMED)
    (made,) = planned.configs
    assert (made.kind, made.owner, made.before, made.after) == ("group", "drill", None, "50000")
    assert [skipped.what for skipped in planned.not_carried] == [
        "config consumer.session.timeout.ms of group elsewhere"
    ]


def test_users_that_the_target_lacks_come_with_the_command() -> None:
    hostile = "x'; rm -rf ~"
    alice = ScramUser(user="alice", mechanism="SCRAM-SHA-512", iterations=8192)
    point = archived(scram_users=(alice, ScramUser(user=hostile, mechanism="SCRAM-SHA-256", iterations=4096)))
    planned = plan(["users"], point, scram_users=(alice,))
    (missing,) = planned.missing
    assert "SCRAM-SHA-256, 4096 iterations" in missing
    assert """--entity-name 'x'"'"'; rm -rf ~' --add-config""" in missing
    assert "--bootstrap-server h:1" in missing


def test_only_what_is_asked_for() -> None:
    point = archived(
        acls=(acl("topic", "orders"),),
        broker_configs=(broker(1, "num.io.threads", "5"),),
        scram_users=(ScramUser(user="a", mechanism="SCRAM-SHA-512", iterations=4096),),
        client_quotas=(ClientQuota(entity={"user": None}, quotas={"producer_byte_rate": 1.0}),),
    )
    assert plan([], point) == SettingsReport()
    fields = ("acls", "configs", "quotas", "missing")
    for part, has in zip(EVERYTHING, fields, strict=True):
        planned = plan([part], point)
        assert [name for name in fields if getattr(planned, name)] == [has]


def test_uncaptured_settings_are_named() -> None:
    point = archived(
        not_carried=(
            not_carried_entry("client_quotas", "not supported", "so it is"),
            not_carried_entry("acls", "not there", "so it is"),
        )
    )
    planned = plan(["acls"], point)
    assert planned.not_carried == (SkippedSetting(what="client quotas", why="so it is"),)
    assert plan([], point) == SettingsReport()


def test_an_older_restore_point_has_nothing_to_set() -> None:
    assert plan(EVERYTHING, archived()) == SettingsReport()


# ACLs that a target lacks, under the names of the target.


ACLS = st.builds(
    acl,
    st.sampled_from(["topic", "group", "cluster", "transactional_id"]),
    st.sampled_from(["orders", "clicks", "swap", "other", "billing", "future", "*", "ord"]),
    st.sampled_from(["literal", "prefixed"]),
    permission=st.sampled_from(["allow", "deny"]),
)


@given(st.sets(ACLS), st.sets(ACLS))
def test_missing_acls_are_planned(acls: set[Acl], there: set[Acl]) -> None:
    before = archived(acls=tuple(acls))
    planned = plan(["acls"], before, RENAMED, acls=there)
    mapped, skipped = map_acls(acls, RENAMED)
    assert {*planned.acls} == mapped - there
    assert len({*planned.acls}) == len(planned.acls)
    again = plan(["acls"], before, RENAMED, acls=there | {*planned.acls})
    assert again.acls == ()
    permissions = [a.permission for a in planned.acls]
    assert permissions == sorted(permissions, reverse=True)  # a denial never comes after what it denies
    assert len(skipped) == sum(a.name == "clicks" and (a.resource, a.pattern) == ("topic", "literal") for a in acls)


@given(st.sets(ACLS))
def test_without_new_names_acls_stay_as_they_are(acls: set[Acl]) -> None:
    assert map_acls(acls, TargetNames({"orders": "orders"}, frozenset(), {})) == (acls, [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (acl("topic", "orders"), acl("topic", "restored.orders")),
        (acl("topic", "swap"), acl("topic", "other")),
        (acl("topic", "future"), acl("topic", "future")),
        (acl("topic", "orders", "prefixed"), acl("topic", "orders", "prefixed")),
        (acl("topic", "*"), acl("topic", "*")),
        (acl("group", "billing"), acl("group", "drill")),
        (acl("group", "orders"), acl("group", "orders")),
        (acl("transactional_id", "orders"), acl("transactional_id", "orders")),
        (acl("cluster", "kafka-cluster"), acl("cluster", "kafka-cluster")),
    ],
)
def test_acls_follow_renamed_topics_and_groups(before: Acl, after: Acl) -> None:
    assert map_acls([before], RENAMED) == ({after}, [])


def test_an_acl_of_a_topic_that_is_not_restored_is_left_out_by_name() -> None:
    planned = plan(["acls"], archived(acls=(acl("topic", "clicks"),)), RENAMED)
    what = "ACL: allow read for User:a from * on topic clicks (literal)"
    assert planned.not_carried == (SkippedSetting(what=what, why="the topic is not restored"),)
    assert planned.acls == ()


def test_patterns_are_pointed_out_where_names_change() -> None:
    patterns = archived(acls=(acl("topic", "ord", "prefixed"), acl("group", "*"), acl("topic", "orders")))
    said = " ".join(plan(["acls"], patterns, RENAMED).warnings)
    assert "topic ord (prefixed)" in said
    assert "group * (any)" in said
    assert plan(["acls"], patterns).warnings == ()


# The commands of Kafka's tools that messages about refused settings end with.


CONFIGS = "kafka-configs.sh --bootstrap-server h:1 --alter "


@pytest.mark.parametrize(
    ("value", "change"), [("1", "--add-config a=1"), ("x,y", "--add-config 'a=[x,y]'"), (None, "--delete-config a")]
)
def test_a_default_of_all_brokers(value: str | None, change: str) -> None:
    config = ConfigChange(kind="broker", owner="", name="a", before=None, after=value, of_all=True)
    assert config_command("h:1", config) == f"{CONFIGS}--entity-type brokers --entity-default {change}"


@pytest.mark.parametrize(
    ("kind", "entity"), [("broker", "brokers"), ("group", "groups"), ("client metrics", "client-metrics")]
)
def test_a_config_of_one_owner(kind: Any, entity: str) -> None:
    config = ConfigChange(kind=kind, owner="my one", name="a", before=None, after="1")
    options = f"--entity-type {entity} --entity-name 'my one' --add-config a=1"
    assert config_command("h:1", config) == CONFIGS + options


@pytest.mark.parametrize(
    ("value", "change"),
    [(1048576.0, "--add-config r=1048576"), (0.5, "--add-config r=0.5"), (None, "--delete-config r")],
)
def test_a_quota_has_its_command(value: float | None, change: str) -> None:
    quota = QuotaChange(entity={"user": "alice", "client-id": None}, name="r", before=None, after=value)
    entity = "--entity-type users --entity-name alice --entity-type clients --entity-default"
    assert quota_command("h:1", quota) == f"{CONFIGS}{entity} {change}"


@pytest.mark.parametrize(
    ("resource", "option"),
    [
        ("topic", "--topic name"),
        ("cluster", "--cluster"),
        ("transactional_id", "--transactional-id name"),
        ("user", "--user-principal name"),
    ],
)
def test_an_acl(resource: str, option: str) -> None:
    denial = acl(resource, "name", "prefixed", operation="describe_configs", permission="deny")
    assert acl_command("h:1", denial, "--add") == (
        "kafka-acls.sh --bootstrap-server h:1 --add --deny-principal User:a --deny-host '*' "
        f"--operation DescribeConfigs {option} --resource-pattern-type prefixed"
    )


# Taking back what a restore changed of settings: the exact inverse, in the places that were changed alone.


NAMES = TargetNames({}, frozenset(), {"g": "g"})
ENTITIES: list[QuotaKey] = [
    (("user", "b o%b"),),
    (("user", None),),
    (("client-id", "app 1"), ("user", "größe")),
    (("ip", None),),
]
values = st.sampled_from(["1", "2"])


def acl_of_user(principal: str) -> Acl:
    return acl("user", "x", principal=principal, operation="describe")


def reading(
    acls: set[str],
    brokers: dict[tuple[int | None, str], str],
    groups: dict[str, str],
    metrics: dict[str, str],
    quotas: dict[tuple[QuotaKey, str], float],
) -> Reading:
    by_entity: dict[QuotaKey, dict[str, float]] = {}
    for (entity, name), value in quotas.items():
        by_entity.setdefault(entity, {})[name] = value
    return Reading(
        source="brokers",
        cluster_id="c",
        acls=tuple(acl_of_user(principal) for principal in sorted(acls)),
        broker_configs=tuple(BrokerConfig(broker=b, name=n, value=v) for (b, n), v in brokers.items()),
        group_configs=tuple(GroupConfig(group="g", name=n, value=v) for n, v in groups.items()),
        client_metrics=(ClientMetrics(name="m", configs=metrics),) if metrics else (),
        client_quotas=tuple(ClientQuota(entity=dict(e), quotas=q) for e, q in by_entity.items()),
    )


READINGS = st.builds(
    reading,
    st.sets(st.sampled_from(["User:a", "User:b", "User:c"])),
    st.dictionaries(st.tuples(st.sampled_from([None, 1]), st.sampled_from(["a", "b"])), values),
    st.dictionaries(st.sampled_from(["a", "b"]), values),
    st.dictionaries(st.sampled_from(["a", "b"]), values),
    st.dictionaries(
        st.tuples(st.sampled_from(ENTITIES), st.sampled_from(["producer_byte_rate", "request_percentage"])),
        st.sampled_from([1.0, 2.0]),
    ),
)


def state(now: Reading) -> dict[Any, Any]:
    """All that stands there, place by place."""
    found: dict[Any, Any] = dict.fromkeys(now.acls or (), True)
    found |= {("broker", c.broker, c.name): c.value for c in now.broker_configs or ()}
    found |= {("group", c.group, c.name): c.value for c in now.group_configs or ()}
    found |= {("metrics", m.name, n): v for m in now.client_metrics or () for n, v in m.configs.items()}
    return found | {("quota", *place): value for place, value in quota_values(now.client_quotas or ()).items()}


def changed(before: dict[Any, Any], changes: Changes) -> dict[Any, Any]:
    """Return the settings after the changes."""
    after = dict(before) | dict.fromkeys(changes.acls, True)
    for each in changes.deleted_acls:
        del after[each]
    for config in changes.configs:
        key: Any = ("group", config.owner, config.name)
        if config.kind == "broker":
            key = ("broker", int(config.owner) if config.owner else None, config.name)
        elif config.kind == "client metrics":
            key = ("metrics", config.owner, config.name)
        assert after.get(key) == config.before
        after[key] = config.after
    for quota in changes.quotas:
        assert after.get(("quota", *quota.key)) == quota.before
        after["quota", *quota.key] = quota.after
    return {key: value for key, value in after.items() if value is not None}


def reading_of(stands: dict[Any, Any]) -> Reading:
    return reading(
        {p.principal for p in stands if isinstance(p, Acl)},
        {p[1:]: v for p, v in stands.items() if isinstance(p, tuple) and p[0] == "broker"},
        {p[2]: v for p, v in stands.items() if isinstance(p, tuple) and p[0] == "group"},
        {p[2]: v for p, v in stands.items() if isinstance(p, tuple) and p[0] == "metrics"},
        {p[1:]: v for p, v in stands.items() if isinstance(p, tuple) and p[0] == "quota"},
    )


def before_of(number: int, changes: Changes) -> SettingsBefore:
    return SettingsBefore(
        restore_id="r", number=number, by="restore", captured_at="t", target_cluster_id="c", changes=changes
    )


def planned(source: Reading, there: Reading) -> Changes:
    kinds = ("acls", "broker_configs", "group_configs", "client_metrics", "client_quotas")
    point = archived(**{kind: getattr(source, kind) for kind in kinds})
    return plan_settings(["acls", "configs", "quotas"], point, NAMES, there, [1], "h:1").changes


@given(READINGS, READINGS)
def test_an_undo_is_the_exact_inverse(source: Reading, there: Reading) -> None:
    changes = planned(source, there)
    after = changed(state(there), changes)
    assert {p: after[p] for p in state(source)} == state(source)
    undo, left = undo_of([before_of(1, changes)], reading_of(after))
    assert changed(after, undo) == state(there)
    assert not left
    assert undo_of([before_of(1, changes)], there) == (Changes(), [])


@given(READINGS, READINGS, READINGS)
def test_undo_restores_the_state_before_the_first_try(first: Reading, second: Reading, there: Reading) -> None:
    one = planned(first, there)
    between = changed(state(there), one)
    two = planned(second, reading_of(between))
    after = changed(between, two)
    undo, _ = undo_of([before_of(1, one), before_of(2, two)], reading_of(after))
    assert changed(after, undo) == state(there)


def test_undo_keeps_changes_of_others() -> None:
    existing = reading(set(), {}, {}, {}, {})
    source = reading({"User:a"}, {(None, "a"): "1"}, {}, {}, {(ENTITIES[0], "producer_byte_rate"): 1.0})
    changes = planned(source, existing)
    others = {
        acl_of_user("User:b"): True,
        ("broker", None, "b"): "2",
        ("quota", ENTITIES[1], "request_percentage"): 2.0,
    }
    now = changed(state(existing), changes) | others
    undo, left = undo_of([before_of(1, changes)], reading_of(now))
    assert changed(now, undo) == others
    assert not left


def test_undo_leaves_what_is_no_longer_as_the_restore_set_it() -> None:
    existing = reading(set(), {}, {}, {}, {})
    source = reading(set(), {(None, "a"): "1"}, {}, {}, {(ENTITIES[0], "producer_byte_rate"): 1.0})
    changes = planned(source, existing)
    since = {("broker", None, "a"): "7", ("quota", ENTITIES[0], "producer_byte_rate"): 5.0}
    now = changed(state(existing), changes) | since
    undo, left = undo_of([before_of(1, changes)], reading_of(now))
    assert undo == Changes()
    assert left[0] == "config a of all brokers stays: it is 7 now, the restore set 1"
    assert left[1].startswith("quota producer_byte_rate of ")
    assert left[1].endswith(" stays: it is 5.0 now, the restore set 1.0")


def test_a_capture_of_what_the_plan_does_not_set_is_refused() -> None:
    changes = planned(reading({"User:a"}, {}, {}, {}, {}), reading(set(), {}, {}, {}, {}))
    with pytest.raises(RefusedError, match="a capture of restore r names acls, which the restore's plan does not"):
        check_planned(None, [changes], "r")


def test_captures_are_numbered_and_never_replaced() -> None:
    captures = SettingsCaptures(RestoreJournal(MemoryStore(), "r"))
    changes = planned(reading({"User:a"}, {}, {}, {}, {}), reading(set(), {}, {}, {}, {}))
    assert [captures.write("restore", "c", changes=changes), captures.write("undo", "c", changes=changes)] == [1, 2]
    assert [(c.number, c.by, c.changes) for c in captures.every()] == [(1, "restore", changes), (2, "undo", changes)]


def test_an_entity_is_the_same_in_any_order() -> None:
    assert entity_key({"user": "a", "client-id": None}) == entity_key({"client-id": None, "user": "a"})
