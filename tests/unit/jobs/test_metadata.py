"""Reading every source that is set, for a backup and for an archive of metadata alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args

import msgspec
import pytest

from kbackup.archive.models import Metadata
from kbackup.errors import CorruptError, MismatchError, UnreachableError, UsageError
from kbackup.jobs.metadata import Merged, MetadataSide, compare, in_words, merge, not_compared, read_all, with_sources
from kbackup.metadata.entities import (
    BROKER_SECRETS,
    LABELS,
    PARTS,
    SCRAM_SECRETS,
    TOKEN_SECRETS,
    BrokerConfig,
    MetadataPartName,
    NotCarried,
    Reading,
    Registration,
    not_carried_entry,
)
from kbackup.metadata.sources import Sources
from kbackup.migrate.metadata_log.codec import record
from kbackup.systems import MetadataSource, metadata_sources
from tests.support.metadata_entities import (
    BROKER_SECRET,
    acl,
    by_brokers,
    by_log,
    by_zookeeper,
    quota,
    token,
    topic,
    user,
)
from tests.support.metadata_records import write_segment

NONE = Sources(kafka={})


def down() -> NoReturn:
    raise UnreachableError("ZooKeeper at zk:2181 did not answer", "is it running?")


def of_two_clusters() -> NoReturn:
    raise MismatchError("the log and its meta.properties are of two clusters", "name the folder of one controller")


def beside(*readings: Reading) -> list[MetadataSource]:
    """Return sources that give these readings."""
    return [MetadataSource(reading.source, reading.source, partial(replace, reading)) for reading in readings]


def test_sources_that_are_asked() -> None:
    assert list(metadata_sources(NONE)) == []
    properties = {"bootstrap.servers": "b:1", "zookeeper.connect": "zk:1/kafka", "metadata.log.dir": "/kraft"}
    assert [(asked.source, asked.name) for asked in metadata_sources(Sources.of(properties))] == [
        ("zookeeper", "ZooKeeper at zk:1/kafka"),
        ("controller log", "the metadata log in /kraft"),
    ]


def test_a_backup_takes_what_other_sources_tell() -> None:
    merged = with_sources(by_brokers(), 3, beside(by_zookeeper(), by_log()))
    assert merged.metadata.scram_users == (user(),)
    assert merged.metadata.brokers == 3
    assert merged.warnings == ()


def test_a_backup_goes_on_without_a_source() -> None:
    merged = with_sources(by_brokers(), 3, [MetadataSource("zookeeper", "ZooKeeper at zk:2181", down)])
    assert merged.metadata == merge([by_brokers()], merged.metadata.captured_at, 3).metadata
    assert merged.warnings == ("ZooKeeper at zk:2181 is not read: ZooKeeper at zk:2181 did not answer; is it running?",)


@pytest.mark.exhaustive
def test_a_corrupt_log_is_damage_of_a_backup_and_ends_an_archive_of_metadata(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, [record("NoOpRecord")])
    path.write_bytes(path.read_bytes()[:-1])
    sources = Sources.of({"metadata.log.dir": str(tmp_path)})
    merged = with_sources(by_brokers(), 3, metadata_sources(sources))
    assert merged.damage == (f"the metadata log in {tmp_path}",)
    assert "byte 0: the file ends within a batch" in merged.warnings[0]
    with pytest.raises(CorruptError, match="byte 0: the file ends within a batch"):
        read_all(sources)


def test_a_source_of_another_cluster_ends_a_backup() -> None:
    with pytest.raises(MismatchError):
        with_sources(by_brokers(), 3, beside(by_zookeeper(cluster_id="d")))


def test_a_source_that_contradicts_itself_about_the_cluster_ends_a_backup() -> None:
    with pytest.raises(MismatchError, match="two clusters"):
        with_sources(by_brokers(), 3, [MetadataSource("controller log", "the metadata log in /kraft", of_two_clusters)])


def test_an_archive_of_metadata_needs_every_source(tmp_path: Path) -> None:
    sources = Sources.of({"metadata.log.dir": str(tmp_path)})
    with pytest.raises(UsageError, match="no metadata log of a controller"):
        read_all(sources)


def test_metadata_is_read_without_brokers(tmp_path: Path) -> None:
    orders = record("TopicRecord", {"name": "orders", "topicId": "AAAAAAAAAAAAAAAAAAAAAQ"})
    write_segment(tmp_path, 0, [orders])
    merged = read_all(Sources.of({"metadata.log.dir": str(tmp_path)}))
    assert [topic.name for topic in merged.metadata.topics] == ["orders"]
    assert set(merged.metadata.sources.values()) == {"controller log"}


# One document of what several sources tell.


AT = "2026-01-01T00:00:00.000Z"


def merged(*readings: Reading) -> Merged:
    return merge(readings, AT, 1)


def names_not_carried(metadata: Metadata) -> set[str]:
    return {entry.what for entry in metadata.not_carried}


def test_metadata_of_brokers_alone_is_taken_as_it_is() -> None:
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


def test_metadata_of_zookeeper_alone_lacks_what_only_brokers_tell() -> None:
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
    unknown = NotCarried(part="delegation_tokens", what=TOKEN_SECRETS, reason="not supported", why="not there")
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


def test_sources_that_disagree_are_named_and_brokers_count() -> None:
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
    assert found.warnings == ("zookeeper is not read: the migration has ended, and no controller writes to it",)
    assert found.metadata.sources["scram_users"] == "controller log"
    both = merged(by_brokers(), by_zookeeper(), by_log(migration="MIGRATION"))
    assert both.warnings == ()


@pytest.mark.parametrize(("is_led_by_broker", "source"), [(True, "zookeeper"), (False, "controller log")])
def test_a_log_is_outdated_once_a_broker_is_the_controller_again(is_led_by_broker: bool, source: str) -> None:
    """After a rollback the controllers' storage stays until it is deleted."""
    newer = by_zookeeper(scram_users=(user(key="bmV3ZXI="),), is_led_by_broker=is_led_by_broker)
    found = merged(newer, by_log(migration="MIGRATION"))
    assert found.metadata.sources["scram_users"] == source
    assert any("a broker is the controller" in warning for warning in found.warnings) is is_led_by_broker


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
    about = {"source", "cluster_id", "not_carried", "outdated", "migration", "is_led_by_broker"}
    assert {part.name for part in PARTS} == set(Reading.__slots__) - about == {*get_args(MetadataPartName)}
    assert {part.name for part in PARTS} <= set(Metadata.__struct_fields__)


# Two sources' metadata, compared entity by entity.


def words(zookeeper: dict[str, Any] | None = None, log: dict[str, Any] | None = None) -> list[str]:
    one = MetadataSide("ZooKeeper", by_zookeeper(**zookeeper or {}))
    other = MetadataSide("the metadata log", by_log(**log or {}))
    return [in_words(difference, one.name, other.name) for difference in compare(one, other)]


def test_sources_that_agree_give_no_warning() -> None:
    assert words() == []


@pytest.mark.parametrize(
    ("zookeeper", "log", "expected"),
    [
        ({"topics": (topic(),)}, {"topics": ()}, "topics: orders: in ZooKeeper, not in the metadata log"),
        ({"topics": ()}, {"topics": (topic(),)}, "topics: orders: in the metadata log, not in ZooKeeper"),
        (
            {"topics": (topic(id="x"),)},
            {"topics": (topic(id="y"),)},
            "topics: orders: id is x in ZooKeeper, y in the metadata log",
        ),
        (
            {"topics": (topic(partitions=2),)},
            {"topics": (topic(),)},
            "topics: orders: partitions is 2 in ZooKeeper, 1 in the metadata log",
        ),
        (
            {"topics": (topic(replicas=((1, 2),)),)},
            {"topics": (topic(replicas=((2, 1),)),)},
            "topics: orders: replicas is [[1,2]] in ZooKeeper, [[2,1]] in the metadata log",
        ),
        (
            {"topics": (topic(configs={}),)},
            {"topics": (topic(),)},
            "topics: orders: retention.ms is not set in ZooKeeper, 1000 in the metadata log",
        ),
        (
            {"acls": (acl(), acl(operation="write"))},
            {},
            "ACLs: User:a allow write from * on literal topic orders: in ZooKeeper, not in the metadata log",
        ),
        (
            {"scram_users": (user(key="b25l"),)},
            {"scram_users": (user(key="b3RoZXI="),)},
            "SCRAM users: alice SCRAM-SHA-512: salt is ******** in ZooKeeper, ******** in the metadata log",
        ),
        (
            {"client_quotas": (quota(None, 1.0),)},
            {"client_quotas": (quota(None, 2.0),)},
            "client quotas: user <default>: consumer_byte_rate is 1.0 in ZooKeeper, 2.0 in the metadata log",
        ),
        (
            {"client_quotas": (quota("<default>"),)},
            {"client_quotas": (quota(None),)},
            "client quotas: user '<default>': in ZooKeeper, not in the metadata log",
        ),
        (
            {"broker_configs": (BrokerConfig(broker=None, name="log.retention.ms", value="1"),)},
            {"broker_configs": (BrokerConfig(broker=None, name="log.retention.ms", value="2"),)},
            "broker configs: log.retention.ms of all brokers: log.retention.ms is 1 in ZooKeeper, "
            "2 in the metadata log",
        ),
        (
            {"broker_configs": (BrokerConfig(broker=1, name="x.ssl.keystore.password", value="hush"),)},
            {"broker_configs": (BrokerConfig(broker=1, name="x.ssl.keystore.password", value="hush2"),)},
            "broker configs: x.ssl.keystore.password of broker 1: x.ssl.keystore.password is ******** in ZooKeeper, "
            "******** in the metadata log",
        ),
        (
            {"delegation_tokens": ()},
            {"delegation_tokens": (token(None),)},
            "delegation tokens: t1: in the metadata log, not in ZooKeeper",
        ),
        (
            {"next_producer_id": 1000},
            {"next_producer_id": 2000},
            "producer ids: next block: first id is 1000 in ZooKeeper, 2000 in the metadata log",
        ),
    ],
)
def test_each_difference_is_named(zookeeper: dict[str, Any], log: dict[str, Any], expected: str) -> None:
    assert expected in words(zookeeper, log)


def test_secrets_are_not_shown() -> None:
    said = words({"scram_users": (user(key="c2VjcmV0LW9uZQ=="),)}, {"scram_users": (user(key="dHdv"),)})
    assert len(said) == 3
    assert "c2VjcmV0" not in " ".join(said)


def test_settings_unknown_to_one_side_are_not_compared() -> None:
    one, other = MetadataSide("brokers", by_brokers()), MetadataSide("ZooKeeper", by_zookeeper(acls=None))
    differing = [d for d in compare(one, other) if d.part != "topics"]
    assert not differing, f"differences beside the topics: {differing}"
    assert not_compared(one, other) == ["ACLs", "group configs", "delegation tokens", "client metrics", "producer ids"]


def test_ids_of_topics_in_both_alphabets() -> None:
    assert words({"topics": (topic(id="a-b_c"),)}, {"topics": (topic(id="a+b/c"),)}) == []
    assert len(words({"topics": (topic(id="a-b_c"),)}, {"topics": (topic(id="a+b/d"),)})) == 1


def test_topics_that_were_chosen() -> None:
    one, other = MetadataSide("brokers", by_brokers()), MetadataSide("ZooKeeper", by_zookeeper())
    assert [d.entity for d in compare(one, other)] == ["unselected"]
    assert compare(one, other, {"orders"}) == []


def test_brokers_that_are_down_tell_no_configs() -> None:
    configs = tuple(BrokerConfig(broker=n, name="log.cleaner.threads", value="2") for n in (1, 2))
    alive = tuple(Registration(id=n, role="broker", listeners=(), alive=n == 1) for n in (1, 2))
    one = MetadataSide("brokers", by_brokers(broker_configs=configs[:1], registrations=alive))
    other = MetadataSide("ZooKeeper", by_zookeeper(broker_configs=configs))
    assert compare(one, other, {"orders"}) == []
    assert len(compare(other, MetadataSide("log", by_log(broker_configs=configs[:1])))) == 1


def test_a_part_that_brokers_do_not_use_is_not_compared() -> None:
    """ZooKeeper may hold ACLs of an authorizer that is not configured any more."""
    disabled = not_carried_entry("acls", "not there", "no authorizer")
    one, other = (
        MetadataSide("brokers", by_brokers(acls=(), not_carried=(disabled,))),
        MetadataSide("ZooKeeper", by_zookeeper()),
    )
    assert compare(one, other, {"orders"}) == []
    assert "ACLs" in not_compared(one, other)


def test_tokens_of_brokers_are_those_that_our_user_may_describe() -> None:
    one, other = (MetadataSide("brokers", by_brokers(delegation_tokens=())), MetadataSide("ZooKeeper", by_zookeeper()))
    assert compare(one, other, {"orders"}) == []
