"""Which ACLs, configs and users a target lacks, under its own names."""

from __future__ import annotations

import pytest

from kbackup.jobs.settings.plan import (
    HOST_SPECIFIC,
    ConfigChange,
    QuotaChange,
    SettingsReport,
    SkippedSetting,
    Target,
    plan_settings,
)
from kbackup.metadata.entities import (
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    GroupConfig,
    ScramUser,
    not_carried_entry,
)
from tests.support.settings_plans import EMPTY, EVERYTHING, RENAMED, SAME, acl, archived, broker, change


def test_configs_of_brokers() -> None:
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
    existing = (
        broker(None, "num.io.threads", "4"),
        broker(2, "num.io.threads", "9"),
        broker(1, "other", "x"),
    )
    planned = plan_settings(["configs"], point, SAME, Target("h:1", [1, 2], broker_configs=existing))
    assert planned.configs == (
        change("", "log.retention.ms", None, "1000", of_all=True),
        change("1", "log.retention.ms", None, "2000"),
    )
    assert {left.what: left.why for left in planned.not_carried} == {
        "config num.io.threads of broker 7": "the target has no broker 7",
        "config advertised.listeners of broker 1": "it belongs to the host that it was set on",
        "config compression.secret of broker 2": "it is sensitive: brokers never give it",
        "config x.password of broker 1": "it is sensitive: set it by hand",
    }
    done = [broker(int(c.owner) if c.owner else None, c.name, c.after) for c in planned.configs]
    again = plan_settings(["configs"], point, SAME, Target("h:1", [1, 2], broker_configs=[*existing, *done]))
    assert (again.configs, again.warnings) == ((), ())


def test_a_broker_that_keeps_its_own_value_is_named() -> None:
    point = archived(broker_configs=(broker(None, "num.io.threads", "4"),))
    there = (broker(2, "num.io.threads", "9"),)
    planned = plan_settings(["configs"], point, SAME, Target("h:1", [1, 2], broker_configs=there))
    assert planned.configs == (change("", "num.io.threads", None, "4", of_all=True),)
    assert planned.warnings == ("broker 2 keeps num.io.threads=9, which is not what all brokers get",)


def test_quotas() -> None:
    def quota(value: float, **entity: str | None) -> ClientQuota:
        return ClientQuota(entity=entity, quotas={"producer_byte_rate": value})  # type: ignore[arg-type]  # names

    point = archived(
        client_quotas=(quota(1.0, user="b o%b"), quota(2.0, user=None), quota(3.0, ip="10.0.0.1"))
    )
    there = (quota(1.0, user="b o%b"), quota(9.0, user=None), quota(5.0, user="elsewhere"))
    planned = plan_settings(["quotas"], point, SAME, Target("h:1", [1], client_quotas=there))
    name = "producer_byte_rate"
    assert planned.quotas == (
        QuotaChange(entity={"ip": "10.0.0.1"}, name=name, before=None, after=3.0),
        QuotaChange(entity={"user": None}, name=name, before=9.0, after=2.0),
    )


def test_client_metrics() -> None:
    point = archived(
        client_metrics=(ClientMetrics(name="m 1", configs={"interval.ms": "1", "metrics": "x"}),)
    )
    there = (ClientMetrics(name="m 1", configs={"interval.ms": "2", "metrics": "x"}),)
    planned = plan_settings(["configs"], point, SAME, Target("h:1", [1], client_metrics=there))
    assert planned.configs == (
        ConfigChange(kind="client metrics", owner="m 1", name="interval.ms", before="2", after="1"),
    )


def test_a_login_that_no_running_cluster_takes() -> None:
    user = ScramUser(
        user="a", mechanism="SCRAM-SHA-256", iterations=4096, salt="s", stored_key="hush", server_key="hush"
    )
    token = DelegationToken(
        id="t",
        owner="User:a",
        requester="User:a",
        renewers=(),
        issued_at=1,
        expires_at=2,
        max_at=3,
        hmac="hush",
    )
    planned = plan_settings(["users"], archived(scram_users=(user,), delegation_tokens=(token,)), SAME, EMPTY)
    (missing,) = planned.missing
    assert "'kbackup migrate bootstrap'" in missing
    assert [skipped.what for skipped in planned.not_carried] == ["delegation token t of User:a"]
    assert "hush" not in repr(planned)


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
def test_host_specific_configs_are_not_carried(name: str) -> None:
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
def test_cluster_configs_are_not_host_specific(name: str) -> None:
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
    assert [skipped.what for skipped in planned.not_carried] == [
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
        client_quotas=(ClientQuota(entity={"user": None}, quotas={"producer_byte_rate": 1.0}),),
    )
    assert plan_settings([], point, SAME, EMPTY) == SettingsReport()
    fields = ("acls", "configs", "quotas", "missing")
    for part, has in zip(EVERYTHING, fields, strict=True):
        planned = plan_settings([part], point, SAME, EMPTY)
        assert [name for name in fields if getattr(planned, name)] == [has]


def test_uncaptured_settings_are_named() -> None:
    point = archived(
        not_carried=(
            not_carried_entry("client_quotas", "not supported", "so it is"),
            not_carried_entry("acls", "not there", "so it is"),
        )
    )
    planned = plan_settings(["acls"], point, SAME, EMPTY)
    assert planned.not_carried == (SkippedSetting(what="client quotas", why="so it is"),)
    assert plan_settings([], point, SAME, EMPTY) == SettingsReport()


def test_an_older_restore_point_has_nothing_to_set() -> None:
    assert plan_settings(EVERYTHING, archived(), SAME, EMPTY) == SettingsReport()
