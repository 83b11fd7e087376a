"""Znodes that Kafka's migration can't read, or would silently take for nothing.

A KRaft controller copies ZooKeeper's metadata by `kafka.zk.ZkMigrationClient` (Kafka 3.9). At a znode that it can't
parse it fails, tries again, and fails again, for ever. Others it passes over: the metadata in them is lost without a
word. A cluster with ZooKeeper may run for years with either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from kbackup.errors import CorruptError
from kbackup.migrate.zookeeper.read import (
    QUOTAS,
    configs,
    document,
    member,
    parse_acls,
    parse_block_end,
    parse_broker_configs,
    parse_credentials,
    parse_features,
    parse_quotas,
    parse_registration,
    parse_token,
    parse_topic,
    strange,
)
from kbackup.migrate.zookeeper.session import Tree, ZooKeeperSession, last

MIGRATION = "/migration"
CONTROLLER = "/controller"
_CONTROLLER_EPOCH = "/controller_epoch"
_TOPICS = "/brokers/topics"

Parse = Callable[[str, bytes], object]
"""Parses the content of the znode at a path; `CorruptError` where Kafka can't, or would lose what it holds."""


def read_partition_states(session: ZooKeeperSession, tree: Tree) -> Mapping[str, bytes]:
    """Read the znode with leader and in-sync replicas of each partition, by path. Those of topics whose own znode can't
    be parsed are left out."""
    paths: list[str] = []
    for path in _migrated_topics(tree):
        try:
            topic = parse_topic(path, tree.znodes[path], {})
        except CorruptError:
            continue  # named by the check of topics
        paths += [f"{path}/partitions/{number}/state" for number in range(topic.partitions)]
    answers = session.read(paths)
    return {path: znode.data for path, znode in answers.znodes.items()}


def unreadable_znodes(tree: Tree, states: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return a text for each znode that the migration can't read, which begins with its path. `states` are the znodes
    of partitions."""
    found: dict[str, str] = {}
    for path, parse in _parsers(tree):
        try:
            parse(path, tree.znodes[path])
        except CorruptError as error:
            # Some znodes have two parsers, as users have credentials and quotas: the first complaint is enough.
            found.setdefault(path, error.message.removeprefix("znode "))
    # Apart from the rest of the tree: they are as many as partitions, and no other part of kbackup needs them.
    for path, data in states.items():
        try:
            _check_state(path, data)
        except CorruptError as error:
            found[path] = error.message.removeprefix("znode ")
    # The only znode that must be there: without it a KRaft controller can't become ZooKeeper's controller.
    if _CONTROLLER_EPOCH not in tree.znodes and _CONTROLLER_EPOCH not in tree.denied:
        found[_CONTROLLER_EPOCH] = f"{_CONTROLLER_EPOCH} is not there"
    return tuple(found[path] for path in sorted(found))


def _parsers(tree: Tree) -> Iterator[tuple[str, Parse]]:
    """Yield each znode that is there with what must be able to parse it."""
    single: dict[str, Parse] = {
        "/cluster/id": _check_cluster_id,
        MIGRATION: _check_migration,
        CONTROLLER: _check_controller,
        _CONTROLLER_EPOCH: _check_controller_epoch,
        "/latest_producer_id_block": _listing(parse_block_end),
        "/feature": _listing(parse_features),
    }
    for path, parse in single.items():
        if path in tree.znodes:
            yield path, parse
    for path in _migrated_topics(tree):
        yield path, _check_topic
    below: list[tuple[str, int, Parse]] = [
        ("/brokers/ids", 1, _listing(parse_registration)),
        ("/config/topics", 1, configs),
        ("/config/brokers", 1, _listing(parse_broker_configs)),
        ("/config/users", 1, _listing(parse_credentials)),
        ("/kafka-acl", 2, _check_acls),
        ("/kafka-acl-extended", 3, _check_acls),
        ("/delegation_token/tokens", 1, _check_token),
    ]
    for root, levels, kinds in QUOTAS:
        below.append((root, levels, _listing(partial(parse_quotas, kinds))))
    for root, levels, parse in below:
        for path in tree.below(root, levels):
            if path in tree.znodes:
                yield path, parse


def _listing(parse: Callable[[str, bytes], Iterator[Any]]) -> Parse:
    """Return a parser that goes through all that `parse` yields."""

    def parse_all(path: str, data: bytes) -> object:
        return list(parse(path, data))

    return parse_all


def _migrated_topics(tree: Tree) -> list[str]:
    """Return the paths of topics. Topics that wait for their deletion are left out, as by the migration."""
    leaving = {last(path) for path in tree.below("/admin/delete_topics")}
    return [path for path in tree.below(_TOPICS) if path in tree.znodes and last(path) not in leaving]


def _full_document(path: str, data: bytes) -> dict[str, Any]:
    if not data:
        raise strange(path, "is empty")
    return document(path, data)


def _check_cluster_id(path: str, data: bytes) -> None:
    member(path, _full_document(path, data), "id", str)


def _check_migration(path: str, data: bytes) -> None:
    """Kafka makes it at the begin of a migration. Its tool that secures znodes makes it, too, without content, and then
    no controller gets past it."""
    values = _full_document(path, data)
    if values.get("version") != 0:
        raise strange(path, "has no version 0")
    for name in ("kraft_controller_id", "kraft_controller_epoch", "kraft_metadata_offset", "kraft_metadata_epoch"):
        member(path, values, name, int)


def _check_controller(path: str, data: bytes) -> None:
    member(path, _full_document(path, data), "brokerid", int)


def _check_controller_epoch(path: str, data: bytes) -> None:
    if not data:
        raise strange(path, "is empty")
    if not re.fullmatch(rb"-?\d{1,10}", data):
        raise strange(path, "holds no number")


def _check_topic(path: str, data: bytes) -> None:
    """Kafka takes one that is no JSON for a topic without id, and fails at the missing id."""
    if not data:
        raise strange(path, "is empty")
    topic = parse_topic(path, data, {})
    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", topic.id):
        raise strange(path, "has no topic_id, which a controller of Kafka 2.8 or later adds")


def _check_state(path: str, data: bytes) -> None:
    """Kafka takes one that is no JSON for a partition that never had a leader: all replicas count as in sync then."""
    values = _full_document(path, data)
    for name in ("leader", "leader_epoch", "controller_epoch"):
        member(path, values, name, int)
    replicas = member(path, values, "isr", list)
    if not all(type(replica) is int for replica in replicas):
        raise strange(path, "has an isr with others than ids of brokers")


def _check_acls(path: str, data: bytes) -> None:
    """Kafka passes over what is no JSON, and the ACLs are lost."""
    if data and document(path, data).get("version") != 1:
        raise strange(path, "has no version 1")
    list(parse_acls(path, data))


def _check_token(path: str, data: bytes) -> None:
    if not data:
        raise strange(path, "is empty")
    list(parse_token(path, data))
