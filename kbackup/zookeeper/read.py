"""Read the whole metadata that a cluster keeps in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

from kbackup.metadata.entities import BrokerConfig, DelegationToken, NotCarried, Znode
from kbackup.metadata.parts import BROKER_SECRETS, TOKEN_SECRETS
from kbackup.metadata.reading import Reading
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.zookeeper import acls, cluster, configs, topics
from kbackup.zookeeper.collect import Collector
from kbackup.zookeeper.connection import open_session
from kbackup.zookeeper.decode import content
from kbackup.zookeeper.tree import Tree, read_tree

CONTROL = ("/controller", "/controller_epoch", "/migration")
"""The znodes that say who controls the cluster, and how far a migration is."""


def read_zookeeper(options: ZooKeeperOptions) -> Reading:
    """Read ZooKeeper. Znodes that can't be parsed, or that our user may not read, are named in `not_carried`.

    `UnreachableError` where ZooKeeper doesn't answer, `MismatchError` where it has no cluster below the chroot."""
    with open_session(options) as session:
        return parse(read_tree(session))


def parse(tree: Tree) -> Reading:
    """Return what the znodes of a cluster say. ZooKeeper holds neither configs of groups nor subscriptions to
    metrics."""
    collector = Collector(tree)
    tokens, brokers = cluster.parse_tokens(collector), configs.parse_broker_configs(collector)
    return Reading(
        source="zookeeper",
        cluster_id=cluster.parse_cluster_id(tree),
        topics=topics.parse_topics(collector),
        acls=acls.parse_acls(collector),
        scram_users=configs.parse_scram_users(collector),
        broker_configs=brokers,
        client_quotas=configs.parse_quotas(collector),
        delegation_tokens=tokens,
        features=cluster.parse_features(collector),
        registrations=cluster.parse_registrations(collector),
        deletions=topics.parse_deletions(collector),
        next_producer_id=cluster.parse_next_producer_id(collector),
        znodes=collector.each("znodes", CONTROL, _control),
        not_carried=(*collector.not_carried(), *_secrets(tokens or (), brokers or ())),
    )


def _control(path: str, data: bytes) -> Iterator[Znode]:
    yield Znode(path=path, content=content(data))


def _secrets(tokens: tuple[DelegationToken, ...], brokers: tuple[BrokerConfig, ...]) -> Iterator[NotCarried]:
    if tokens:
        yield NotCarried(
            part="delegation_tokens",
            what=TOKEN_SECRETS,
            reason="not supported",
            why="ZooKeeper doesn't hold the HMACs",
        )
    if any(config.value is None for config in brokers):
        yield NotCarried(
            part="broker_configs",
            what=BROKER_SECRETS,
            reason="not supported",
            why="they are encrypted in ZooKeeper with the brokers' own key",
        )
