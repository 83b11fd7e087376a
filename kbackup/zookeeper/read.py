"""The metadata of a cluster from its znodes. `CorruptError` names a znode that can't be decoded."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote_plus

from kbackup.errors import CorruptError, MismatchError
from kbackup.metadata.encoder import is_encrypted
from kbackup.metadata.entities import (
    BROKER_SECRETS,
    TOKEN_SECRETS,
    Acl,
    BrokerConfig,
    ClientQuota,
    DelegationToken,
    Feature,
    Listener,
    MetadataPartName,
    NotCarried,
    QuotaEntity,
    Reading,
    Registration,
    ScramUser,
    TopicMetadata,
    Znode,
    not_carried_entry,
)
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.util.text import join_names
from kbackup.zookeeper.session import Tree, last, open_session, read_tree

T = TypeVar("T")
_HINT = "repair it with ZooKeeper's own shell; if it isn't Kafka's, check the chroot in zookeeper.connect"
_DEFAULT = "<default>"


def strange(path: str, why: str) -> CorruptError:
    return CorruptError(f"znode {path} {why}", _HINT)


def content(data: bytes) -> str:
    """Return a znode as text, to show or to archive; bytes that are not UTF-8 become escapes such as \\xff."""
    return data.decode("utf-8", "backslashreplace")


def document(path: str, data: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a znode."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise strange(path, "holds no JSON object")
    return value


def member(path: str, values: dict[str, Any], name: str, kind: type[T]) -> T:
    """Return a member of a JSON object in a znode. Kafka writes some numbers as text."""
    value = values.get(name)
    if kind is int and isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        value = int(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise strange(path, f"has no {name}, or one of an unknown form")
    return value


def texts(path: str, values: Any, name: str) -> dict[str, str]:
    """Return an object whose members are texts."""
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise strange(path, f"has a {name} that isn't text by name")
    return dict(sorted(values.items()))


def configs(path: str, data: bytes) -> dict[str, str]:
    """Return what a znode below /config sets; nothing for an empty one, which only has children."""
    return texts(path, document(path, data).get("config", {}), "config") if data else {}


def name_of(path: str, encoded: str) -> str:
    """Return a name that Kafka's `Sanitizer` has %-encoded."""
    try:
        if not re.search(r"%(?![0-9A-Fa-f]{2})", encoded):
            return unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError:
        pass
    raise strange(path, f"has a name that is not %-encoded UTF-8: {encoded}")


def entity_name(path: str, encoded: str) -> str | None:
    """Return the decoded name of a quota's owner; None for the default."""
    return None if encoded == _DEFAULT else name_of(path, encoded)


# Parse the znodes of a part one by one; those that can't be parsed or read are named.


_NAMED = 3


@dataclass(frozen=True)
class Collector:
    """`failed` and `denied`: by part, what is not carried of it, each with the path of its znode."""

    tree: Tree
    failed: dict[MetadataPartName, list[str]] = field(default_factory=lambda: defaultdict(list))
    denied: dict[MetadataPartName, list[str]] = field(default_factory=lambda: defaultdict(list))

    def each(
        self, part: MetadataPartName, paths: Iterable[str], parse: Callable[[str, bytes], Iterable[T]]
    ) -> tuple[T, ...]:
        """Return all that `parse` finds in the znodes at `paths`; those that don't exist have nothing."""
        return tuple(entity for path in paths for entity in self._parse(part, path, parse))

    def _parse(self, part: MetadataPartName, path: str, parse: Callable[[str, bytes], Iterable[T]]) -> Iterable[T]:
        if path in self.tree.denied:
            self.denied[part].append(path)
        if path not in self.tree.znodes:
            return ()
        try:
            return tuple(parse(path, self.tree.znodes[path]))
        except CorruptError as error:
            self.failed[part].append(error.message)
            return ()

    def below(
        self, part: MetadataPartName, root: str, parse: Callable[[str, bytes], Iterable[T]], levels: int = 1
    ) -> tuple[T, ...] | None:
        """Collect from the znodes `levels` below `root`; None if our user may not read `root` itself."""
        if root in self.tree.denied:
            self.denied[part].append(root)
            return None
        for level in range(1, levels):  # what is below a denied znode is not even listed
            self.each(part, (p for p in self.tree.below(root, level) if p in self.tree.denied), parse)
        return self.each(part, self.tree.below(root, levels), parse)

    def not_carried(self) -> Iterator[NotCarried]:
        """One entry for each part that is not whole."""
        for part in sorted(self.failed.keys() | self.denied.keys()):
            denied = sorted(set(self.denied[part]))
            lines = [f"znode {path} may not be read" for path in denied] + self.failed[part]
            yield not_carried_entry(part, "denied" if denied else "failed", join_names(lines, _NAMED))


# ACLs, as AclAuthorizer keeps them. Names of resources are not encoded.


_WORDS = {
    "resource": {"topic", "group", "cluster", "transactional_id", "delegation_token", "user"},
    "pattern": {"literal", "prefixed"},
    "permission": {"allow", "deny"},
    "operation": {
        *("all", "read", "write", "create", "delete", "alter", "describe", "cluster_action"),
        *("describe_configs", "alter_configs", "idempotent_write", "create_tokens", "describe_tokens"),
    },
}


def parse_acls(collector: Collector) -> tuple[Acl, ...] | None:
    literal = collector.below("acls", "/kafka-acl", _resource, levels=2)
    extended = collector.below("acls", "/kafka-acl-extended", _resource, levels=3)
    return None if literal is None or extended is None else (*literal, *extended)


def _resource(path: str, data: bytes) -> Iterator[Acl]:
    """/kafka-acl/Topic/orders, or /kafka-acl-extended/prefixed/Topic/orders."""
    *before, kind, name = path.split("/")
    pattern = "literal" if before[-1] == "kafka-acl" else before[-1]
    for acl in member(path, document(path, data), "acls", list):
        if not isinstance(acl, dict):
            raise strange(path, "has an ACL that is no JSON object")
        yield _acl(path, acl, _word(path, "resource", kind), name, _word(path, "pattern", pattern))


def _acl(path: str, acl: dict[str, Any], resource: str, name: str, pattern: str) -> Acl:
    return Acl(
        resource=resource,
        name=name,
        pattern=pattern,
        principal=member(path, acl, "principal", str),
        host=member(path, acl, "host", str),
        operation=_word(path, "operation", member(path, acl, "operation", str)),
        permission=_word(path, "permission", member(path, acl, "permissionType", str)),
    )


def _word(path: str, field: str, kafkas: str) -> str:
    """Return Kafka's name in snake case: TransactionalId becomes transactional_id."""
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kafkas).lower()
    if word not in _WORDS[field]:
        raise strange(path, f"has an unknown {field}: {kafkas}")
    return word


# Read a cluster's own znodes: its id, its brokers, features, delegation tokens, producer ids.


_ENDPOINT = re.compile(r"(\w[\w.-]*)://\[?([^\]]*?)\]?:(\d{1,5})")


def parse_cluster_id(tree: Tree) -> str:
    """Return the cluster id of a znode. `MismatchError` if there is none: the address is not a Kafka cluster's."""
    path = "/cluster/id"
    if path not in tree.znodes:
        raise MismatchError(
            f"ZooKeeper has no znode {path} that can be read, so no Kafka cluster",
            "check the chroot at the end of zookeeper.connect",
        )
    return member(path, document(path, tree.znodes[path]), "id", str)


def parse_registrations(collector: Collector) -> tuple[Registration, ...] | None:
    """Return the brokers that are alive: their znodes go with their sessions."""
    return collector.below("registrations", "/brokers/ids", _registration)


def parse_features(collector: Collector) -> tuple[Feature, ...]:
    return collector.each("features", ["/feature"], _features)


def parse_tokens(collector: Collector) -> tuple[DelegationToken, ...] | None:
    """ZooKeeper doesn't hold the HMACs."""
    return collector.below("delegation_tokens", "/delegation_token/tokens", _token)


def parse_next_producer_id(collector: Collector) -> int | None:
    """Return the first id behind the last block that a broker got; None before there was one."""
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
    """Its principals are encoded, unlike the principals of ACLs. Before Kafka 3.3 the owner was always the
    requester."""
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


# Read the settings below /config: quotas of clients, SCRAM credentials, configs of brokers.


_USERS = "/config/users"
_SCRAM = "SCRAM-SHA-"
_CREDENTIAL = re.compile(
    r"salt=([A-Za-z0-9+/=]+),stored_key=([A-Za-z0-9+/=]+),server_key=([A-Za-z0-9+/=]+),iterations=(\d{1,9})"
)


def parse_scram_users(collector: Collector) -> tuple[ScramUser, ...] | None:
    return collector.below("scram_users", _USERS, _credentials)


def parse_quotas(collector: Collector) -> tuple[ClientQuota, ...] | None:
    parts = (
        collector.below("client_quotas", _USERS, _user_quotas),
        collector.below("client_quotas", _USERS, _user_client_quotas, levels=3),
        collector.below("client_quotas", "/config/clients", _client_quotas),
        collector.below("client_quotas", "/config/ips", _ip_quotas),
    )
    whole = [part for part in parts if part is not None]
    return tuple(quota for part in whole for quota in part) if len(whole) == len(parts) else None


def parse_broker_configs(collector: Collector) -> tuple[BrokerConfig, ...] | None:
    """A sensitive value is encrypted with a key that only the brokers have: it becomes null."""
    return collector.below("broker_configs", "/config/brokers", _broker_configs)


def _credentials(path: str, data: bytes) -> Iterator[ScramUser]:
    for mechanism, value in configs(path, data).items():
        if not mechanism.startswith(_SCRAM):
            continue
        credential = _CREDENTIAL.fullmatch(value)
        if credential is None:
            raise strange(path, f"has a credential for {mechanism} of an unknown form")
        salt, stored_key, server_key, iterations = credential.groups()
        yield ScramUser(
            user=name_of(path, last(path)),
            mechanism=mechanism,
            iterations=int(iterations),
            salt=salt,
            stored_key=stored_key,
            server_key=server_key,
        )


def _user_quotas(path: str, data: bytes) -> Iterator[ClientQuota]:
    return _quotas(path, data, {"user": entity_name(path, last(path))})


def _user_client_quotas(path: str, data: bytes) -> Iterator[ClientQuota]:
    """/config/users/U/clients/C"""
    *_, user, _clients, client = path.split("/")
    return _quotas(path, data, {"user": entity_name(path, user), "client-id": entity_name(path, client)})


def _client_quotas(path: str, data: bytes) -> Iterator[ClientQuota]:
    return _quotas(path, data, {"client-id": entity_name(path, last(path))})


def _ip_quotas(path: str, data: bytes) -> Iterator[ClientQuota]:
    return _quotas(path, data, {"ip": entity_name(path, last(path))})


def _quotas(path: str, data: bytes, entity: QuotaEntity) -> Iterator[ClientQuota]:
    """Yield the quota of a znode; none if it holds credentials alone."""
    quotas = {
        name: _number(path, name, value) for name, value in configs(path, data).items() if not name.startswith(_SCRAM)
    }
    if quotas:
        yield ClientQuota(entity=entity, quotas=quotas)


def _number(path: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise strange(path, f"has a {name} that is no number")
    return number


def _broker_configs(path: str, data: bytes) -> Iterator[BrokerConfig]:
    owner = last(path)
    if owner != "<default>" and not re.fullmatch(r"\d{1,10}", owner):
        raise strange(path, "is not named by the id of a broker")
    broker = None if owner == "<default>" else int(owner)
    for name, value in configs(path, data).items():
        yield BrokerConfig(broker=broker, name=name, value=None if is_encrypted(value) else value)


# Topics: their ids, partitions, replicas and configs. Those that wait for their deletion are not among them.


_INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")


def parse_deletions(collector: Collector) -> tuple[str, ...] | None:
    return collector.below("deletions", "/admin/delete_topics", lambda path, _: [last(path)])


def parse_topics(collector: Collector) -> tuple[TopicMetadata, ...] | None:
    """KRaft's copy leaves out what waits for its deletion, too."""
    leaving = {last(path) for path in collector.tree.below("/admin/delete_topics")}
    bodies = collector.below("topics", "/brokers/topics", lambda path, data: [(path, data)])
    own = collector.below("topics", "/config/topics", lambda path, data: [(last(path), configs(path, data))])
    if bodies is None or own is None:
        return None
    set_configs = dict(own)
    paths = [path for path, _ in bodies if last(path) not in leaving]
    return collector.each("topics", paths, lambda path, data: [_topic(path, data, set_configs.get(last(path), {}))])


def _topic(path: str, data: bytes, own: dict[str, str]) -> TopicMetadata:
    topic, name = document(path, data), last(path)
    if not _NAME.fullmatch(name):
        raise strange(path, "is not named as a topic can be")
    replicas = tuple(_replicas(path, member(path, topic, "partitions", dict)))
    return TopicMetadata(
        name=name,
        id=topic["topic_id"] if isinstance(topic.get("topic_id"), str) else "",  # none before Kafka 2.8
        partitions=len(replicas),
        replication_factor=max(map(len, replicas), default=0),
        internal=name in _INTERNAL,
        configs=own,
        replicas=replicas,
    )


def _replicas(path: str, partitions: dict[str, Any]) -> Iterator[tuple[int, ...]]:
    if partitions.keys() != set(map(str, range(len(partitions)))):
        raise strange(path, "has partitions that are not numbered from 0 without gaps")
    for number in range(len(partitions)):
        brokers = partitions[str(number)]
        if not isinstance(brokers, list) or not all(type(broker) is int for broker in brokers):
            raise strange(path, f"has replicas of partition {number} that are no ids of brokers")
        yield tuple(brokers)


# Read the whole metadata that a cluster keeps in ZooKeeper.


CONTROL = ("/controller", "/controller_epoch", "/migration")
"""The znodes with the controller of the cluster and the state of a migration."""


def read_zookeeper(options: ZooKeeperOptions) -> Reading:
    """Read ZooKeeper. Znodes that can't be parsed, or that our user may not read, are named in `not_carried`.

    `UnreachableError` where ZooKeeper doesn't answer, `MismatchError` if it has no cluster below the chroot."""
    with open_session(options) as session:
        return parse(read_tree(session))


def parse(tree: Tree) -> Reading:
    """Return the contents of a cluster's znodes. ZooKeeper holds neither configs of groups nor subscriptions to
    metrics."""
    collector = Collector(tree)
    tokens, brokers = parse_tokens(collector), parse_broker_configs(collector)
    return Reading(
        source="zookeeper",
        cluster_id=parse_cluster_id(tree),
        topics=parse_topics(collector),
        acls=parse_acls(collector),
        scram_users=parse_scram_users(collector),
        broker_configs=brokers,
        client_quotas=parse_quotas(collector),
        delegation_tokens=tokens,
        features=parse_features(collector),
        registrations=parse_registrations(collector),
        deletions=parse_deletions(collector),
        next_producer_id=parse_next_producer_id(collector),
        znodes=collector.each("znodes", CONTROL, _control),
        not_carried=(*collector.not_carried(), *_secrets(tokens or (), brokers or ())),
    )


def _control(path: str, data: bytes) -> Iterator[Znode]:
    yield Znode(path=path, content=content(data))


def _secrets(tokens: tuple[DelegationToken, ...], brokers: tuple[BrokerConfig, ...]) -> Iterator[NotCarried]:
    if tokens:
        yield NotCarried(
            part="delegation_tokens", what=TOKEN_SECRETS, reason="not supported", why="ZooKeeper doesn't hold the HMACs"
        )
    if any(config.value is None for config in brokers):
        yield NotCarried(
            part="broker_configs",
            what=BROKER_SECRETS,
            reason="not supported",
            why="they are encrypted in ZooKeeper with the brokers' own key",
        )
