"""Checks of the preflight whose sources were not read, and metadata that an archive lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from kbackup.archive.models import Metadata
from kbackup.jobs.migrate import preflight
from kbackup.jobs.migrate import preflight as of_brokers
from kbackup.jobs.migrate import preflight as of_controllers
from kbackup.jobs.migrate.preflight import judge
from kbackup.jobs.migrate.readings import missing_metadata
from kbackup.jobs.migrate.states import NotRead
from kbackup.jobs.migrate.znodes import Broker, Findings
from kbackup.metadata.entities import SCRAM_SECRETS, NotCarried, ScramUser, not_carried_entry
from tests.support.healthy_cluster import (
    CLUSTER,
    NOW,
    broker_configs,
    brokers,
    controller,
    findings,
    zookeeper,
)
from tests.support.preflights import line

UNREAD = NotRead("nobody asked", "ask")
OF_BOTH_SIDES = {
    of_controllers.ZOOKEEPER,
    preflight.LISTENERS,
    of_brokers.VERSION,
    preflight.AUTHORIZER,
    preflight.ENCODER,
    preflight.TOKENS,
    preflight.ZNODE_ACLS,
    preflight.LOGIN,
}


NOT_LOOKED_AT = [
    (
        replace(findings(), brokers=UNREAD),
        {
            of_brokers.RELEASE,
            of_brokers.PROTOCOL,
            of_brokers.IDS,
            of_brokers.ALIVE,
            preflight.OFFLINE,
            of_controllers.DEDICATED,
            of_controllers.BROKERS_ENABLED,
            *OF_BOTH_SIDES,
            preflight.CLUSTER_ID,
        },
    ),
    (
        replace(findings(), zookeeper=UNREAD),
        {of_brokers.ALIVE, preflight.DELETIONS, preflight.CLUSTER_ID, preflight.ENCODER},
    ),
    (replace(findings(), quorum=UNREAD), {preflight.QUORUM}),
    (
        replace(findings(), controllers=UNREAD),
        {
            of_controllers.DEDICATED,
            of_controllers.ENABLED,
            preflight.SUPER_USERS,
            *OF_BOTH_SIDES,
            preflight.CLUSTER_ID,
        },
    ),
    (replace(findings(), archive=UNREAD), {preflight.ARCHIVE}),
    (Findings(UNREAD, UNREAD, UNREAD, UNREAD, NOW, UNREAD), {line.name for line in judge(findings()).lines}),
    (
        brokers(brokers=(Broker(1, UNREAD, UNREAD), Broker(2, 17, {}))),
        {
            of_brokers.RELEASE,
            of_brokers.PROTOCOL,
            of_brokers.IDS,
            of_controllers.BROKERS_ENABLED,
            *OF_BOTH_SIDES,
        },
    ),
    (
        replace(brokers(reassigning=UNREAD), zookeeper=UNREAD),
        {
            of_brokers.ALIVE,
            preflight.DELETIONS,
            preflight.CLUSTER_ID,
            preflight.REASSIGNMENTS,
            preflight.ENCODER,
        },
    ),
    (broker_configs({"inter.broker.protocol.version": None}), {of_brokers.PROTOCOL}),
]


@pytest.mark.parametrize(("partly", "names"), NOT_LOOKED_AT, ids=range(len(NOT_LOOKED_AT)))
def test_not_looked_at_is_never_ok(partly: Findings, names: set[str]) -> None:
    report = judge(partly)
    unread = [line for line in report.lines if line.status == "not looked at"]
    assert {line.name for line in unread} == names
    assert all(line.detail.startswith("not looked at: ") and line.hint for line in unread)
    assert (report.verdict, report.exit_code) == ("ready with warnings", 3)


def test_problems_are_reported_though_another_source_is_missing() -> None:
    one_side = replace(controller({}, cluster_id="other"), zookeeper=UNREAD)
    assert line(one_side, preflight.CLUSTER_ID).status == "failed"
    assert line(replace(zookeeper(known=frozenset({3})), brokers=UNREAD), of_brokers.ALIVE).status == "failed"


def test_missing_parts_of_an_archive() -> None:
    """Metadata that the cluster does not have is not missing; metadata that was not captured is."""
    empty: dict[str, tuple[()]] = {
        "scram_users": (),
        "broker_configs": (),
        "client_quotas": (),
        "delegation_tokens": (),
    }
    common = {"captured_at": "2026-01-01T00:00:00.000Z", "cluster_id": CLUSTER, "brokers": 1, "topics": ()}

    def missing(*not_carried: NotCarried, **parts: object) -> tuple[str, ...]:
        return missing_metadata(Metadata(**{**common, **empty, **parts}, not_carried=not_carried))  # type: ignore[arg-type]  # fields

    assert missing() == ("ACLs",)
    assert missing(not_carried_entry("acls", "not there", "")) == ()
    assert missing(not_carried_entry("acls", "not supported", "")) == ("ACLs",)
    assert missing(not_carried_entry("group_configs", "not supported", ""), acls=()) == ()
    secrets = NotCarried(part="scram_users", what=SCRAM_SECRETS, reason="secret", why="")
    assert missing(secrets, acls=()) == (SCRAM_SECRETS,)
    assert missing(acls=(), client_quotas=None) == ("client quotas",)
    alice = ScramUser(user="alice", mechanism="SCRAM-SHA-512", iterations=4096)
    assert missing(acls=(), scram_users=(alice,)) == ("secrets of SCRAM users",)
    assert missing(acls=(), scram_users=(structs.replace(alice, stored_key="eA=="),)) == ()
