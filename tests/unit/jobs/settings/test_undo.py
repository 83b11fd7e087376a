"""Taking back what a restore changed of settings: the exact inverse, in the places that were changed alone."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.models import Metadata
from kbackup.jobs.settings.before import SettingsBefore, SettingsCaptures
from kbackup.jobs.settings.plan import Changes, Names, Target, entity_key, plan_settings, quota_values
from kbackup.jobs.settings.write import undo_of
from kbackup.metadata.entities import (
    Acl,
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    GroupConfig,
    QuotaKey,
    Reading,
)
from tests.support.memory_store import MemoryStore

NAMES = Names({}, frozenset(), {"g": "g"})
ENTITIES: list[QuotaKey] = [
    (("user", "b o%b"),),
    (("user", None),),
    (("client-id", "app 1"), ("user", "größe")),
    (("ip", None),),
]
values = st.sampled_from(["1", "2"])


def acl(principal: str) -> Acl:
    fields = {"host": "*", "operation": "describe", "permission": "allow"}
    return Acl(resource="user", name="x", pattern="literal", principal=principal, **fields)


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
        acls=tuple(map(acl, sorted(acls))),
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
    return found | {
        ("quota", *place): value for place, value in quota_values(now.client_quotas or ()).items()
    }


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


def planned(archived: Reading, there: Reading) -> Changes:
    point = Metadata(
        captured_at="then",
        cluster_id="source",
        brokers=1,
        topics=(),
        acls=archived.acls,
        broker_configs=archived.broker_configs,
        group_configs=archived.group_configs,
        client_metrics=archived.client_metrics,
        client_quotas=archived.client_quotas,
    )
    target = Target(
        "h:1",
        [1],
        acls=there.acls or (),
        broker_configs=there.broker_configs or (),
        group_configs=there.group_configs or (),
        client_quotas=there.client_quotas or (),
        client_metrics=there.client_metrics or (),
    )
    return plan_settings(["acls", "configs", "quotas"], point, NAMES, target).changes


@given(READINGS, READINGS)
def test_an_undo_is_the_exact_inverse(archived: Reading, there: Reading) -> None:
    changes = planned(archived, there)
    after = changed(state(there), changes)
    assert {p: after[p] for p in state(archived)} == state(archived)
    undo = undo_of([before_of(1, changes)], reading_of(after))
    assert changed(after, undo) == state(there)
    assert not undo_of([before_of(1, changes)], there)


@given(READINGS, READINGS, READINGS)
def test_undo_restores_the_state_before_the_first_try(
    first: Reading, second: Reading, there: Reading
) -> None:
    one = planned(first, there)
    between = changed(state(there), one)
    two = planned(second, reading_of(between))
    after = changed(between, two)
    undo = undo_of([before_of(1, one), before_of(2, two)], reading_of(after))
    assert changed(after, undo) == state(there)


def test_undo_keeps_changes_of_others() -> None:
    existing = reading(set(), {}, {}, {}, {})
    archived = reading({"User:a"}, {(None, "a"): "1"}, {}, {}, {(ENTITIES[0], "producer_byte_rate"): 1.0})
    changes = planned(archived, existing)
    others = {
        acl("User:b"): True,
        ("broker", None, "b"): "2",
        ("quota", ENTITIES[1], "request_percentage"): 2.0,
    }
    now = changed(state(existing), changes) | others
    assert changed(now, undo_of([before_of(1, changes)], reading_of(now))) == others


def test_captures_are_numbered_and_never_replaced() -> None:
    captures = SettingsCaptures(MemoryStore(), "r")
    changes = planned(reading({"User:a"}, {}, {}, {}, {}), reading(set(), {}, {}, {}, {}))
    assert [captures.write("restore", "c", changes), captures.write("undo", "c", changes)] == [1, 2]
    assert [(c.number, c.by, c.changes) for c in captures.every()] == [
        (1, "restore", changes),
        (2, "undo", changes),
    ]


def test_an_entity_is_the_same_in_any_order() -> None:
    assert entity_key({"user": "a", "client-id": None}) == entity_key({"client-id": None, "user": "a"})
