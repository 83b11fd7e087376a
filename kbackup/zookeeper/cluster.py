"""Read a cluster's own znodes: its id, its brokers, features, delegation tokens, producer ids."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kbackup.errors import MismatchError
from kbackup.metadata.entities import DelegationToken, Feature, Listener, Registration
from kbackup.zookeeper.collect import Collector
from kbackup.zookeeper.decode import document, member, name_of, strange, texts
from kbackup.zookeeper.tree import Tree, last

_ENDPOINT = re.compile(r"(\w[\w.-]*)://\[?([^\]]*?)\]?:(\d{1,5})")


def parse_cluster_id(tree: Tree) -> str:
    """Return the cluster id of a znode. `MismatchError` where there is none: the address is not that of a Kafka
    cluster."""
    path = "/cluster/id"
    if path not in tree.znodes:
        raise MismatchError(
            f"ZooKeeper has no znode {path} that can be read, so no Kafka cluster",
            "check the chroot at the end of zookeeper.connect",
        )
    return member(path, document(path, tree.znodes[path]), "id", str)


def parse_registrations(collector: Collector) -> tuple[Registration, ...] | None:
    """The brokers that are alive: their znodes go with their sessions."""
    return collector.below("registrations", "/brokers/ids", _registration)


def parse_features(collector: Collector) -> tuple[Feature, ...]:
    return collector.each("features", ["/feature"], _features)


def parse_tokens(collector: Collector) -> tuple[DelegationToken, ...] | None:
    """ZooKeeper doesn't hold the HMACs."""
    return collector.below("delegation_tokens", "/delegation_token/tokens", _token)


def parse_next_producer_id(collector: Collector) -> int | None:
    """The first id behind the last block that a broker got; None before there was one."""
    return next(iter(collector.each("next_producer_id", ["/latest_producer_id_block"], _block_end)), None)


def _registration(path: str, data: bytes) -> Iterator[Registration]:
    broker = document(path, data)
    if not re.fullmatch(r"\d{1,10}", last(path)):
        raise strange(path, "is not named by the id of a broker")
    protocols = texts(path, broker.get("listener_security_protocol_map", {}), "map of listeners")
    listeners = member(path, broker, "endpoints", list)
    rack = broker.get("rack")
    yield Registration(
        id=int(last(path)),
        role="broker",
        listeners=tuple(_listener(path, endpoint, protocols) for endpoint in listeners),
        rack=rack if isinstance(rack, str) else None,
        alive=True,
    )


def _listener(path: str, endpoint: object, protocols: dict[str, str]) -> Listener:
    parts = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
    if parts is None:
        raise strange(path, f"has an endpoint of an unknown form: {endpoint}")
    name, host, port = parts.groups()
    return Listener(name=name, host=host, port=int(port), security_protocol=protocols.get(name, name))


def _features(path: str, data: bytes) -> Iterator[Feature]:
    features = member(path, document(path, data), "features", dict)
    for name, level in sorted(features.items()):
        number = level.get("max_version_level") if isinstance(level, dict) else level
        if type(number) is not int:
            raise strange(path, f"has no level for the feature {name}")
        yield Feature(name=name, level=number)


def _token(path: str, data: bytes) -> Iterator[DelegationToken]:
    """Its principals are encoded, unlike those of ACLs. Before Kafka 3.3 the owner was always the requester."""
    token = document(path, data)
    owner = name_of(path, member(path, token, "owner", str))
    renewers = member(path, token, "renewers", list)
    if not all(isinstance(renewer, str) for renewer in renewers):
        raise strange(path, "has a renewer that is no text")
    requester = token.get("tokenRequester")
    yield DelegationToken(
        id=member(path, token, "tokenId", str),
        owner=owner,
        requester=name_of(path, requester) if isinstance(requester, str) else owner,
        renewers=tuple(name_of(path, renewer) for renewer in renewers),
        issued_at=member(path, token, "issueTimestamp", int),
        expires_at=member(path, token, "expiryTimestamp", int),
        max_at=member(path, token, "maxTimestamp", int),
    )


def _block_end(path: str, data: bytes) -> Iterator[int]:
    if data:
        yield member(path, document(path, data), "block_end", int) + 1
