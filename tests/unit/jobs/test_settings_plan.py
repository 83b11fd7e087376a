"""Which ACLs, configs and users a target lacks, under its own names."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.models import Metadata
from kbackup.jobs.settings_acls import LeftOut, Names, map_acls
from kbackup.jobs.settings_plan import HOST_SPECIFIC, ConfigChange, SettingsReport, Target, plan_settings
from kbackup.metadata.entities import Acl, BrokerConfig, GroupConfig, NotCarried, ScramUser

SAME = Names({"orders": "orders"}, frozenset(), {"billing": "billing"})
RENAMED = Names(
    {"orders": "restored.orders", "swap": "other", "other": "swap"},
    frozenset({"clicks"}),
    {"billing": "drill"},
)
EMPTY = Target("h:1", [1, 2])
EVERYTHING = ("acls", "configs", "users")


def acl(resource: str, name: str, pattern: str = "literal", **more: str) -> Acl:
    fields = {"principal": "User:a", "host": "*", "operation": "read", "permission": "allow"} | more
    return Acl(resource=resource, name=name, pattern=pattern, **fields)


def archived(**settings: Any) -> Metadata:
    return Metadata(captured_at="then", cluster_id="source", brokers=1, topics=(), **settings)


def broker(number: int | None, name: str, value: str | None) -> BrokerConfig:
    return BrokerConfig(broker=number, name=name, value=value)


def change(owner: str, name: str, before: str | None, after: str, of_all: bool = False) -> ConfigChange:
    return ConfigChange(kind="broker", owner=owner, name=name, before=before, after=after, of_all=of_all)


ACLS = st.builds(
    acl,
    st.sampled_from(["topic", "group", "cluster", "transactional_id"]),
    st.sampled_from(["orders", "clicks", "swap", "other", "billing", "future", "*", "ord"]),
    st.sampled_from(["literal", "prefixed"]),
    permission=st.sampled_from(["allow", "deny"]),
)


@given(st.sets(ACLS), st.sets(ACLS))
def test_what_is_planned_is_what_is_missing(wanted: set[Acl], there: set[Acl]) -> None:
    before = archived(acls=tuple(wanted))
    planned = plan_settings(["acls"], before, RENAMED, Target("h:1", [1], acls=there))
    mapped, left = map_acls(wanted, RENAMED)
    assert {*planned.acls} == mapped - there
    assert len({*planned.acls}) == len(planned.acls)
    again = plan_settings(["acls"], before, RENAMED, Target("h:1", [1], acls=there | {*planned.acls}))
    assert again.acls == ()
    permissions = [a.permission for a in planned.acls]
    assert permissions == sorted(permissions, reverse=True)  # a denial never comes after what it denies
    assert len(left) == sum(
        a.name == "clicks" and (a.resource, a.pattern) == ("topic", "literal") for a in wanted
    )


@given(st.sets(ACLS))
def test_without_new_names_acls_stay_as_they_are(acls: set[Acl]) -> None:
    assert map_acls(acls, Names({"orders": "orders"}, frozenset(), {})) == (acls, [])


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
def test_names_of_acls(before: Acl, after: Acl) -> None:
    assert map_acls([before], RENAMED) == ({after}, [])


def test_an_acl_of_a_topic_that_is_not_restored_is_left_out_by_name() -> None:
    planned = plan_settings(["acls"], archived(acls=(acl("topic", "clicks"),)), RENAMED, EMPTY)
    what = "ACL: allow read for User:a from * on topic clicks (literal)"
    assert planned.not_carried == (LeftOut(what=what, why="the topic is not restored"),)
    assert planned.acls == ()


def test_patterns_are_pointed_out_where_names_change() -> None:
    patterns = archived(acls=(acl("topic", "ord", "prefixed"), acl("group", "*"), acl("topic", "orders")))
    said = " ".join(plan_settings(["acls"], patterns, RENAMED, EMPTY).warnings)
    assert "topic ord (prefixed)" in said
    assert "group * (any)" in said
    assert plan_settings(["acls"], patterns, SAME, EMPTY).warnings == ()


def test_configs_of_brokers() -> None:
    point = archived(
        broker_configs=(
            broker(None, "log.retention.ms", "1000"),
            broker(1, "log.retention.ms", "2000"),
            broker(None, "num.io.threads", "4"),
            broker(7, "num.io.threads", "5"),
            broker(1, "advertised.listeners", "INTERNET://h:1"),
            broker(2, "compression.secret", None),
        )
    )
    there = (broker(None, "num.io.threads", "4"), broker(2, "num.io.threads", "9"), broker(1, "other", "x"))
    planned = plan_settings(["configs"], point, SAME, Target("h:1", [1, 2], broker_configs=there))
    assert planned.configs == (
        change("1", "log.retention.ms", None, "2000"),  # its own, not that of all
        change("2", "log.retention.ms", None, "1000", of_all=True),
        change("2", "num.io.threads", "9", "4", of_all=True),
    )
    assert {left.what: left.why for left in planned.not_carried} == {
        "config num.io.threads of broker 7": "the target has no broker 7",
        "config advertised.listeners of broker 1": "it belongs to the host that it was set on",
        "config compression.secret of broker 2": "it is sensitive: brokers never give it",
    }
    assert "log.retention.ms, num.io.threads" in planned.warnings[0]
    done = [broker(int(c.owner), c.name, c.after) for c in planned.configs]
    own = {(c.broker, c.name) for c in done}
    after = [*done, *(c for c in there if (c.broker, c.name) not in own)]
    again = plan_settings(["configs"], point, SAME, Target("h:1", [1, 2], broker_configs=after))
    assert (again.configs, again.warnings) == ((), ())


@pytest.mark.parametrize(
    "name",
    [
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "listener.name.internal.ssl.keystore.location",
        "ssl.truststore.type",
        "sasl.jaas.config",
        "security.inter.broker.protocol",
        "inter.broker.listener.name",
        "log.dirs",
        "broker.rack",
        "metric.reporters",
        "principal.builder.class",
        "remote.log.storage.manager.class.path",
    ],
)
def test_what_belongs_to_a_host(name: str) -> None:
    assert HOST_SPECIFIC.search(name)
    point = archived(broker_configs=(broker(1, name, "x"), broker(None, name, "y")))
    planned = plan_settings(["configs"], point, SAME, EMPTY)
    assert planned.configs == ()
    assert len(planned.not_carried) == 2


@pytest.mark.parametrize(
    "name",
    [
        "log.retention.ms",
        "message.max.bytes",
        "num.io.threads",
        "log.cleaner.threads",
        "max.connections",
        "log.message.timestamp.type",
        "log.cleanup.policy",
        "leader.replication.throttled.rate",
    ],
)
def test_what_belongs_to_the_cluster(name: str) -> None:
    assert not HOST_SPECIFIC.search(name)


def test_configs_of_groups_follow_their_names() -> None:
    point = archived(
        group_configs=(
            GroupConfig(group="billing", name="consumer.session.timeout.ms", value="50000"),
            GroupConfig(group="elsewhere", name="consumer.session.timeout.ms", value="50000"),
        )
    )
    planned = plan_settings(["configs"], point, RENAMED, EMPTY)
    (made,) = planned.configs
    assert (made.kind, made.owner, made.before, made.after) == ("group", "drill", None, "50000")
    assert [left.what for left in planned.not_carried] == [
        "config consumer.session.timeout.ms of group elsewhere"
    ]


def test_users_that_the_target_lacks_come_with_the_command() -> None:
    hostile = "x'; rm -rf ~"
    alice = ScramUser(user="alice", mechanism="SCRAM-SHA-512", iterations=8192)
    point = archived(scram_users=(alice, ScramUser(user=hostile, mechanism="SCRAM-SHA-256", iterations=4096)))
    planned = plan_settings(["users"], point, SAME, Target("h:1", [1], scram_users=(alice,)))
    (missing,) = planned.missing
    assert "SCRAM-SHA-256, 4096 iterations" in missing
    assert """--entity-name 'x'"'"'; rm -rf ~' --add-config""" in missing
    assert "--bootstrap-server h:1" in missing


def test_only_what_is_asked_for() -> None:
    point = archived(
        acls=(acl("topic", "orders"),),
        broker_configs=(broker(1, "num.io.threads", "5"),),
        scram_users=(ScramUser(user="a", mechanism="SCRAM-SHA-512", iterations=4096),),
    )
    assert plan_settings([], point, SAME, EMPTY) == SettingsReport()
    for part, has in zip(EVERYTHING, ("acls", "configs", "missing"), strict=True):
        planned = plan_settings([part], point, SAME, EMPTY)
        assert [name for name in ("acls", "configs", "missing") if getattr(planned, name)] == [has]


def test_what_no_backup_holds_is_named() -> None:
    def not_carried(what: str, reason: Literal["not there", "not supported"]) -> NotCarried:
        return NotCarried(what=what, reason=reason, why="so it is")

    point = archived(
        not_carried=(not_carried("client quotas", "not supported"), not_carried("ACLs", "not there"))
    )
    planned = plan_settings(["acls"], point, SAME, EMPTY)
    assert planned.not_carried == (LeftOut(what="client quotas", why="so it is"),)
    assert plan_settings([], point, SAME, EMPTY) == SettingsReport()


def test_an_older_restore_point_has_nothing_to_set() -> None:
    assert plan_settings(EVERYTHING, archived(), SAME, EMPTY) == SettingsReport()
