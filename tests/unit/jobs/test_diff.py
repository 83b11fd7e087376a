"""A diff of two views reports exactly what was changed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.jobs.diff import Diff, DiffView, GroupDiff, Move, OffsetDiff, TopicDiff, TopicView, Value, Values, diff
from kbackup.metadata.entities import Acl

NAMES = st.sampled_from(["a", "b", "c", "d"])
PARTITIONS = st.integers(1, 3).flatmap(
    lambda n: st.fixed_dictionaries({p: st.tuples(st.integers(0, 2), st.integers(2, 5)) for p in range(n)})
)
TOPICS = st.builds(
    TopicView,
    st.sampled_from(["", "id 1", "id 2"]),
    st.sampled_from([None, 1, 2]),
    PARTITIONS,
    st.sampled_from([None, 1, 3]),
    st.none() | st.dictionaries(NAMES, st.sampled_from(["1", "2"]), max_size=2),
)
ACLS = st.builds(
    Acl,
    resource=st.sampled_from(["topic", "group"]),
    name=NAMES,
    pattern=st.just("literal"),
    principal=st.just("User:a"),
    host=st.just("*"),
    operation=st.sampled_from(["read", "write"]),
    permission=st.sampled_from(["allow", "deny"]),
)
CONFIGS = st.none() | st.dictionaries(st.tuples(NAMES, NAMES), st.none() | st.just("1") | st.just("2"), max_size=3)
VIEWS = st.builds(
    DiffView,
    st.sampled_from(["one", "other"]),
    st.sampled_from(["cluster", "other cluster"]),
    st.dictionaries(NAMES, TOPICS),
    st.dictionaries(NAMES, st.dictionaries(st.tuples(NAMES, st.integers(0, 2)), st.integers(0, 9), max_size=3)),
    st.none() | st.frozensets(ACLS, max_size=4),
    st.fixed_dictionaries({"users": CONFIGS, "broker_configs": CONFIGS, "group_configs": CONFIGS}),
)

READ = Acl(
    **{"resource": "topic", "name": "orders", "pattern": "literal"},
    **{"principal": "User:a", "host": "*", "operation": "read", "permission": "allow"},
)
ORDERS = TopicView("id", None, {0: (0, 10), 1: (5, 7)}, 3, {"retention.ms": "1"})
SETTINGS: dict[str, Values | None] = {
    "users": {("alice", "SCRAM-SHA-512"): "4096 iterations"},
    "broker_configs": {("all brokers", "log.retention.ms"): "1", ("broker 1", "ssl.keystore.password"): None},
    "group_configs": {("billing", "consumer.session.timeout.ms"): "45000"},
}
BASE = DiffView(
    "restore point 1",
    "cluster",
    {"orders": ORDERS, "clicks": TopicView("id of clicks", None, {0: (0, 1)}, 1, {})},
    {"billing": {("orders", 0): 4, ("orders", 1): 6}},
    frozenset({READ}),
    SETTINGS,
)


def parts(difference: Diff) -> dict[str, object]:
    """Return the differences by part of the metadata, without parts that have none."""
    named = {field.name: getattr(difference, field.name) for field in fields(difference)}
    return {name: part for name, part in named.items() if part and name not in ("a", "b", "same")}


@given(VIEWS)
def test_a_view_is_like_itself(view: DiffView) -> None:
    assert diff(view, view).same


@given(VIEWS, VIEWS)
def test_the_other_way_round_is_the_opposite(a: DiffView, b: DiffView) -> None:
    existing, back = diff(a, b), diff(b, a)
    assert existing.same == back.same
    opposite = {"appeared": "gone", "gone": "appeared", "changed": "changed", "recreated": "recreated"}
    assert [(t.topic, opposite[t.change], t.partitions[::-1], t.replication[::-1]) for t in existing.topics] == [
        (t.topic, t.change, t.partitions, t.replication) for t in back.topics
    ]
    for values in ("users", "broker_configs", "group_configs"):
        assert [
            Value(v.owner, v.name, opposite[v.change], v.after, v.before)  # type: ignore[arg-type]
            for v in getattr(existing, values)
        ] == list(getattr(back, values))
    assert [(opposite[x.change], x.acl) for x in existing.acls] == [(x.change, x.acl) for x in back.acls]
    assert [(g.group, opposite[g.change]) for g in existing.groups] == [(g.group, g.change) for g in back.groups]


@given(VIEWS, VIEWS)
def test_differences_lead_from_one_view_to_the_other(a: DiffView, b: DiffView) -> None:
    result = diff(a, b)
    changes = {t.topic: t.change for t in result.topics}
    appeared = {name for name, change in changes.items() if change == "appeared"}
    gone = {name for name, change in changes.items() if change == "gone"}
    assert ({*a.topics} | appeared) - gone == {*b.topics}
    if a.acls is not None and b.acls is not None:
        acls = {*a.acls} | {x.acl for x in result.acls if x.change == "appeared"}
        assert acls - {x.acl for x in result.acls if x.change == "gone"} == b.acls
    groups = {(name, *tp): offset for name, stood in a.groups.items() for tp, offset in stood.items()}
    for group in result.groups:
        for move in group.moved:
            key = (group.group, move.topic, move.partition)
            assert groups.pop(key, None) == move.before
            if move.after is not None:
                groups[key] = move.after
    assert groups == {(name, *tp): offset for name, stood in b.groups.items() for tp, offset in stood.items()}
    for name in {*a.topics} & {*b.topics}:
        if changes.get(name) == "recreated":
            continue
        ends = {p: end for p, (_, end) in a.topics[name].partitions.items()}
        for moved in (o for o in result.offsets if o.topic == name):
            ends[moved.partition] = moved.end[0] + moved.added
        after = b.topics[name].partitions
        assert {p: end for p, end in ends.items() if p in after} == {
            p: end for p, (start, end) in after.items() if p in ends
        }
        assert {p for p in after if p not in ends} <= {p for p, (start, end) in after.items() if start == end}


ORDERS_IN = {"orders": ORDERS, "clicks": BASE.topics["clicks"]}


def with_orders(**changes: Any) -> DiffView:
    return replace(BASE, topics=ORDERS_IN | {"orders": replace(ORDERS, **changes)})


def with_settings(**changes: Values) -> DiffView:
    return replace(BASE, settings=SETTINGS | changes)


NEW = TopicView("id", None, {0: (0, 0)}, 1, {"x": "y"})
CONFIGURED = (Value("orders", "retention.ms", "changed", "1", "2"), Value("orders", "x", "appeared", None, "1"))
MOVED = (Move("orders", 0, 4, None), Move("orders", 1, 6, None))
LATE = GroupDiff("late", "appeared", (Move("clicks", 0, None, 1),))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            replace(BASE, topics=ORDERS_IN | {"new": NEW}),
            {"topics": (TopicDiff("new", "appeared", (None, 1), (None, 1), ()),)},
        ),
        (
            replace(BASE, topics={"orders": ORDERS}),
            {"topics": (TopicDiff("clicks", "gone", (1, None), (1, None), ()),)},
        ),
        (
            with_orders(id="id 2", partitions={0: (0, 3)}),
            {"topics": (TopicDiff("orders", "recreated", (2, 1), (3, 3), ()),)},
        ),
        (
            with_orders(configs={"retention.ms": "2", "x": "1"}),
            {"topics": (TopicDiff("orders", "changed", (2, 2), (3, 3), CONFIGURED),)},
        ),
        (
            with_orders(partitions={**ORDERS.partitions, 2: (0, 4)}),
            {
                "topics": (TopicDiff("orders", "changed", (2, 3), (3, 3), ()),),
                "offsets": (OffsetDiff("orders", 2, (0, 0), (0, 4), 4),),
            },
        ),
        (with_orders(partitions={0: (2, 15), 1: (5, 7)}), {"offsets": (OffsetDiff("orders", 0, (0, 2), (10, 15), 5),)}),
        (
            replace(BASE, groups={"billing": {("orders", 0): 4, ("orders", 1): 7}, "late": {("clicks", 0): 1}}),
            {"groups": (GroupDiff("billing", "changed", (Move("orders", 1, 6, 7),)), LATE)},
        ),
        (replace(BASE, groups={}), {"groups": (GroupDiff("billing", "gone", MOVED),)}),
        (
            with_settings(users={("alice", "SCRAM-SHA-512"): "8192 iterations"}),
            {"users": (Value("alice", "SCRAM-SHA-512", "changed", "4096 iterations", "8192 iterations"),)},
        ),
        (
            with_settings(broker_configs={("all brokers", "log.retention.ms"): "1"}),
            {"broker_configs": (Value("broker 1", "ssl.keystore.password", "gone", None, None),)},
        ),
        (replace(BASE, acls=None, unknown={"ACLs": "denied"}), {"not_compared": {"ACLs": "restore point 1: denied"}}),
    ],
)
def test_exactly_what_was_changed(changed: DiffView, expected: dict[str, object]) -> None:
    assert parts(diff(BASE, changed)) == expected


def test_an_acl_that_came_and_one_that_went() -> None:
    denied = Acl(**{f: getattr(READ, f) for f in READ.__struct_fields__} | {"permission": "deny"})
    found = diff(BASE, replace(BASE, acls=frozenset({denied})))
    assert {(x.change, x.acl) for x in found.acls} == {("gone", READ), ("appeared", denied)}


def test_ids_of_two_clusters_say_nothing() -> None:
    other = replace(BASE, cluster_id="other", topics=ORDERS_IN | {"orders": replace(ORDERS, id="other id")})
    assert parts(diff(BASE, other)) == {"not_compared": {"topic ids": "these are two clusters"}}
    assert diff(BASE, other).same


def test_a_diff_of_ten_thousand_topics_finds_the_one_that_differs() -> None:
    topics = {
        f"topic-{n}": TopicView(f"id {n}", None, dict.fromkeys(range(10), (0, n)), 3, {"a": "b"}) for n in range(10_000)
    }
    groups = {f"group-{n}": {(f"topic-{n}", p): n for p in range(10)} for n in range(10_000)}
    a = DiffView("a", "cluster", topics, groups)
    b = replace(a, topics=topics | {"topic-77": replace(topics["topic-77"], id="another")})
    assert parts(diff(a, b)) == {"topics": (TopicDiff("topic-77", "recreated", (10, 10), (3, 3), ()),)}
