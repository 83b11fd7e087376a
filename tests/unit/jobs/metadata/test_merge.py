"""One document of what several sources tell."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest

from kbackup.archive.models import Metadata
from kbackup.errors import MismatchError
from kbackup.jobs.metadata import Merged, merge
from kbackup.metadata.entities import (
    BROKER_SECRETS,
    LABELS,
    PARTS,
    SCRAM_SECRETS,
    TOKEN_SECRETS,
    MetadataPartName,
    NotCarried,
    Reading,
    Znode,
    not_carried_entry,
)
from tests.support.metadata_entities import (
    BROKER_SECRET,
    acl,
    by_brokers,
    by_log,
    by_zookeeper,
    token,
    topic,
    user,
)

AT = "2026-01-01T00:00:00.000Z"


def merged(*readings: Reading) -> Merged:
    return merge(readings, AT, 1)


def names_not_carried(metadata: Metadata) -> set[str]:
    return {entry.what for entry in metadata.not_carried}


def test_brokers_alone() -> None:
    found, brokers = merged(by_brokers()), by_brokers()
    for name in ("cluster_id", "not_carried", *LABELS):
        assert getattr(found.metadata, name) == getattr(brokers, name)
    assert set(found.metadata.sources.values()) == {"brokers"}
    assert found.warnings == ()


def test_each_part_has_its_source_and_nothing_is_missing() -> None:
    found = merged(by_brokers(), by_zookeeper())
    metadata = found.metadata
    assert found.warnings == ()
    assert metadata.sources == {
        "topics": "brokers",
        "acls": "brokers",
        "scram_users": "zookeeper",
        "broker_configs": "zookeeper",
        "group_configs": "brokers",
        "client_quotas": "brokers",
        "delegation_tokens": "zookeeper",
        "registrations": "zookeeper",
        "deletions": "zookeeper",
        "next_producer_id": "zookeeper",
    }
    assert metadata.scram_users == (user(),)
    assert metadata.delegation_tokens == (token(),)
    assert names_not_carried(metadata) == {"client metrics"}


def test_topics_are_those_of_the_brokers_and_gaps_are_filled() -> None:
    metadata = merged(by_brokers(), by_log()).metadata
    assert metadata.topics == (topic(replicas=((1, 2),)),)
    assert metadata.broker_configs is not None
    assert metadata.broker_configs[0].value == "hush"
    assert names_not_carried(metadata) == {"client metrics"}


def test_without_brokers() -> None:
    metadata = merge([by_zookeeper()], AT, 0).metadata
    assert [t.name for t in metadata.topics] == ["orders", "unselected"]
    assert (metadata.brokers, metadata.cluster_id) == (1, "c")
    assert names_not_carried(metadata) == {"group configs"}


def test_tokens_of_the_log_get_their_secrets_from_brokers() -> None:
    brokers = by_brokers(delegation_tokens=(token(),), not_carried=())
    metadata = merged(brokers, by_log()).metadata
    assert metadata.sources["delegation_tokens"] == "controller log"
    assert metadata.delegation_tokens == (token(),)


def test_tokens_are_those_of_the_full_list() -> None:
    """Neither ZooKeeper nor the log has the secrets; brokers tell one of two tokens."""
    unknown = NotCarried(
        part="delegation_tokens", what=TOKEN_SECRETS, reason="not supported", why="not there"
    )
    second = msgspec.structs.replace(token(None), id="t2")
    brokers = by_brokers(delegation_tokens=(token(),), not_carried=())
    zookeeper = by_zookeeper(delegation_tokens=(token(None), second), not_carried=(unknown,))
    metadata = merged(brokers, zookeeper).metadata
    assert metadata.delegation_tokens == (token(), second)
    assert names_not_carried(metadata) == {"secrets of delegation tokens"}
    whole = by_zookeeper(delegation_tokens=(token(None),), not_carried=(unknown,))
    assert names_not_carried(merged(brokers, whole).metadata) == set()


def test_broker_secrets_that_the_migration_left_encrypted_are_named() -> None:
    """ZooKeeper never tells them; that the log should, and doesn't, is what the user must hear."""
    never, failed = (
        NotCarried(part="broker_configs", what=BROKER_SECRETS, reason=reason, why=reason)
        for reason in ("not supported", "failed")
    )
    zookeeper = by_zookeeper(not_carried=(never,))
    ciphertext = by_log(broker_configs=(BROKER_SECRET,), not_carried=(failed,))
    metadata = merged(by_brokers(not_carried=()), zookeeper, ciphertext).metadata
    assert (metadata.broker_configs, metadata.not_carried) == ((BROKER_SECRET,), (failed,))
    assert merged(zookeeper, by_log()).metadata.not_carried == ()


def test_denied_parts_stay_named_until_another_source_has_them() -> None:
    denied = not_carried_entry("acls", "denied", "no right")
    brokers = by_brokers(acls=None, not_carried=(denied,))
    alone = merged(brokers).metadata
    assert (alone.acls, names_not_carried(alone)) == (None, {"ACLs"})
    both = merged(brokers, by_zookeeper()).metadata
    assert (both.acls, both.sources["acls"]) == ((acl(),), "zookeeper")
    assert "ACLs" not in names_not_carried(both)


def test_disagreement_is_named() -> None:
    found = merged(by_brokers(), by_zookeeper(acls=(acl(), acl("other"))), by_log())
    assert found.metadata.acls == (acl(),)
    assert found.warnings == (
        "brokers and zookeeper disagree (ACLs: User:a allow read from * on literal topic other: "
        "in zookeeper, not in brokers): run 'kbackup migrate verify'",
        "zookeeper and metadata log disagree (ACLs: User:a allow read from * on literal topic other: "
        "in zookeeper, not in metadata log): run 'kbackup migrate verify'",
    )


def test_many_differences_are_counted() -> None:
    (warning,) = merged(by_brokers(), by_zookeeper(acls=tuple(acl(f"t{n}") for n in range(9)))).warnings
    assert warning.count("ACLs:") == 5
    assert "; and 5 more)" in warning


def test_an_outdated_source_is_named_and_not_used() -> None:
    old = by_zookeeper(acls=(), outdated="the migration has ended")
    found = merged(by_brokers(), old)
    assert found.warnings == ("zookeeper is not read: the migration has ended",)
    assert found.metadata.scram_users == (user(key=None),)
    assert SCRAM_SECRETS in names_not_carried(found.metadata)


def test_zookeeper_is_outdated_once_the_migration_has_ended() -> None:
    found = merged(by_brokers(), by_zookeeper(acls=()), by_log(migration="POST_MIGRATION"))
    assert found.warnings == (
        "zookeeper is not read: the migration has ended, and no controller writes to it",
    )
    assert found.metadata.sources["scram_users"] == "controller log"
    both = merged(by_brokers(), by_zookeeper(), by_log(migration="MIGRATION"))
    assert both.warnings == ()


@pytest.mark.parametrize(("epoch", "source"), [(-1, "zookeeper"), (5, "controller log")])
def test_a_log_is_outdated_once_a_broker_is_the_controller_again(epoch: int, source: str) -> None:
    """After a rollback the controllers' storage stays until it is deleted."""
    controller = Znode(path="/controller", content=json.dumps({"brokerid": 1, "kraftControllerEpoch": epoch}))
    newer = by_zookeeper(scram_users=(user(key="bmV3ZXI="),), znodes=(controller,))
    found = merged(newer, by_log(migration="MIGRATION"))
    assert found.metadata.sources["scram_users"] == source
    assert any("a broker is the controller" in warning for warning in found.warnings) is (epoch < 0)


def test_sources_of_two_clusters() -> None:
    other = Reading(source="zookeeper", cluster_id="d")
    with pytest.raises(MismatchError, match="brokers c, zookeeper d"):
        merged(by_brokers(), other)


def test_an_entry_goes_by_its_part_not_by_its_words() -> None:
    """A record type of a newer Kafka says nothing of the part that its name resembles."""
    unknown = NotCarried(part=None, what="ACL record 99", reason="not supported", why="of a newer Kafka")
    own = NotCarried(part="acls", what="words of any kind", reason="failed", why="broken")
    both = merged(by_brokers(not_carried=(own,)), by_log(acls=(acl(),), not_carried=(unknown,))).metadata
    assert both.sources["acls"] == "controller log"
    assert both.not_carried == (unknown,)


def test_every_part_of_a_reading_is_known() -> None:
    about = {"source", "cluster_id", "not_carried", "outdated", "migration"}
    assert {part.name for part in PARTS} == set(Reading.__slots__) - about == {*get_args(MetadataPartName)}
    assert {part.name for part in PARTS} <= set(Metadata.__struct_fields__)
