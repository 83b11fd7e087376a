"""The metadata of a cluster from its znodes. `CorruptError` names a znode that can't be decoded."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import unquote_plus

from kbackup.errors import CorruptError, MismatchError
from kbackup.metadata import entities
from kbackup.metadata.entities import Acl, BrokerConfig, ClientQuota, DelegationToken, NotCarried, Reading, Registration
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.migrate.zookeeper.session import Tree, last, open_session, read_tree
from kbackup.util.text import join_names

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
    # JSON's true is an int to Python, and no number to Kafka.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise strange(path, f"has no {name}, or one of an unknown form")
    return value


def texts(path: str, values: Any, name: str) -> dict[str, str]:
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise strange(path, f"has a {name} that isn't text by name")
    return dict(sorted(values.items()))


def configs(path: str, data: bytes) -> dict[str, str]:
    """Return what a znode below /config sets; nothing for an empty one, which only has children."""
    if not data:
        return {}
    values = document(path, data).get("config", {})
    return texts(path, values, "config")


def name_of(path: str, encoded: str) -> str:
    """Return a name that Kafka's `Sanitizer` has %-encoded."""
    # As Java's URLDecoder: it takes a '+' for a space, and fails at a '%' without two digits, which Python leaves as it
    # is.
    try:
        if not re.search(r"%(?![0-9A-Fa-f]{2})", encoded):
            return unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError:
        pass
    raise strange(path, f"has a name that is not %-encoded UTF-8: {encoded}")


# Parse the znodes of a part one by one; those that can't be parsed or read are named.


_NAMED = 3


@dataclass(frozen=True)
class Collector:
    """`failed` and `denied`: by part, what is not carried of it, each with the path of its znode."""

    tree: Tree
    failed: dict[entities.MetadataPartName, list[str]] = field(default_factory=lambda: defaultdict(list))
    denied: dict[entities.MetadataPartName, list[str]] = field(default_factory=lambda: defaultdict(list))

    def each(
        self, part: entities.MetadataPartName, paths: Iterable[str], parse: Callable[[str, bytes], Iterable[T]]
    ) -> tuple[T, ...]:
        """Return all that `parse` finds in the znodes at `paths`; znodes that don't exist have nothing."""
        found: list[T] = []
        for path in paths:
            if path in self.tree.denied:
                self.denied[part].append(path)
            if path in self.tree.znodes:
                try:
                    # Whole or not at all: what a parser yields before it fails is not carried.
                    found += tuple(parse(path, self.tree.znodes[path]))
                except CorruptError as error:
                    self.failed[part].append(error.message)
        return tuple(found)

    def below(
        self, part: entities.MetadataPartName, root: str, parse: Callable[[str, bytes], Iterable[T]], levels: int = 1
    ) -> tuple[T, ...] | None:
        """Collect from the znodes `levels` below `root`; None if our user may not read `root` itself."""
        if root in self.tree.denied:
            self.denied[part].append(root)
            return None
        # What is below a denied znode is not even listed, so the denied ones on the way are named in its place.
        for level in range(1, levels):
            denied = [path for path in self.tree.below(root, level) if path in self.tree.denied]
            self.each(part, denied, parse)
        return self.each(part, self.tree.below(root, levels), parse)

    def not_carried(self) -> Iterator[NotCarried]:
        """One entry for each part that is not whole."""
        for part in sorted(self.failed.keys() | self.denied.keys()):
            denied = sorted(set(self.denied[part]))
            lines = [f"znode {path} may not be read" for path in denied]
            lines += self.failed[part]
            reason: entities.Reason = "denied" if denied else "failed"
            yield entities.not_carried_entry(part, reason, join_names(lines, _NAMED))


# ACLs, as AclAuthorizer keeps them. Names of resources are not encoded.


_WORDS = {
    "resource": entities.ACL_RESOURCES,
    "pattern": entities.ACL_PATTERNS,
    "permission": entities.ACL_PERMISSIONS,
    "operation": entities.ACL_OPERATIONS,
}


def parse_acls(path: str, data: bytes) -> Iterator[Acl]:
    """/kafka-acl/Topic/orders, or /kafka-acl-extended/prefixed/Topic/orders. Kafka takes an empty one for no ACL."""
    if not data:
        return
    # Kafka keeps patterns apart from literal names, so that brokers before 2.0 would not take a prefix for a name.
    *_, root_or_pattern, kind, name = path.split("/")
    pattern = "literal" if root_or_pattern == "kafka-acl" else root_or_pattern
    for acl in member(path, document(path, data), "acls", list):
        if not isinstance(acl, dict):
            raise strange(path, "has an ACL that is no JSON object")
        resource = _word(path, "resource", kind)
        pattern_word = _word(path, "pattern", pattern)
        principal = member(path, acl, "principal", str)
        host = member(path, acl, "host", str)
        operation = member(path, acl, "operation", str)
        permission = member(path, acl, "permissionType", str)
        yield Acl(
            resource=resource,
            name=name,
            pattern=pattern_word,
            principal=principal,
            host=host,
            operation=_word(path, "operation", operation),
            permission=_word(path, "permission", permission),
        )


def _word(path: str, field: str, kafkas: str) -> str:
    """Return Kafka's name in snake case: TransactionalId becomes transactional_id."""
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kafkas).lower()
    if word not in _WORDS[field].values():
        raise strange(path, f"has an unknown {field}: {kafkas}")
    return word


# Read a cluster's own znodes: its brokers, features, delegation tokens, producer ids.


_ENDPOINT = re.compile(r"(\w[\w.-]*)://\[?([^\]]*?)\]?:(\d{1,5})")


def parse_registration(path: str, data: bytes) -> Iterator[Registration]:
    broker = document(path, data)
    if not re.fullmatch(r"\d{1,10}", last(path)):
        raise strange(path, "is not named by the id of a broker")
    protocols = texts(path, broker.get("listener_security_protocol_map", {}), "map of listeners")
    listeners = []
    for endpoint in member(path, broker, "endpoints", list):
        parts = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
        if parts is None:
            raise strange(path, f"has an endpoint of an unknown form: {endpoint}")
        name, host, port = parts.groups()
        protocol = protocols.get(name, name)
        listeners.append(entities.Listener(name=name, host=host, port=int(port), security_protocol=protocol))
    rack = broker.get("rack")
    known_rack = rack if isinstance(rack, str) else None
    # The znode goes with the broker's session: whoever is registered lives.
    yield Registration(id=int(last(path)), role="broker", listeners=tuple(listeners), rack=known_rack, alive=True)


def parse_features(path: str, data: bytes) -> Iterator[entities.Feature]:
    features = member(path, document(path, data), "features", dict)
    for name, level in sorted(features.items()):
        number = level.get("max_version_level") if isinstance(level, dict) else level
        if type(number) is not int:
            raise strange(path, f"has no level for the feature {name}")
        yield entities.Feature(name=name, level=number)


def parse_token(path: str, data: bytes) -> Iterator[DelegationToken]:
    """Its principals are encoded, unlike the principals of ACLs. Before Kafka 3.3 the owner was always the
    requester."""
    token = document(path, data)
    owner = name_of(path, member(path, token, "owner", str))
    renewers = member(path, token, "renewers", list)
    if not all(isinstance(renewer, str) for renewer in renewers):
        raise strange(path, "has a renewer that is no text")
    encoded_requester = token.get("tokenRequester")
    requester = name_of(path, encoded_requester) if isinstance(encoded_requester, str) else owner
    renewer_names = [name_of(path, renewer) for renewer in renewers]
    yield DelegationToken(
        id=member(path, token, "tokenId", str),
        owner=owner,
        requester=requester,
        renewers=tuple(renewer_names),
        issued_at=member(path, token, "issueTimestamp", int),
        expires_at=member(path, token, "expiryTimestamp", int),
        max_at=member(path, token, "maxTimestamp", int),
    )


def parse_block_end(path: str, data: bytes) -> Iterator[int]:
    if data:
        # The block itself is given to a broker, which may have used all of it: the first free id comes after.
        yield member(path, document(path, data), "block_end", int) + 1


# Read the settings below /config: quotas of clients, SCRAM credentials, configs of brokers.


QUOTAS: tuple[tuple[str, int, tuple[Literal["user", "client-id", "ip"], ...]], ...] = (
    ("/config/users", 1, ("user",)),
    ("/config/users", 3, ("user", "client-id")),  # /config/users/U/clients/C
    ("/config/clients", 1, ("client-id",)),
    ("/config/ips", 1, ("ip",)),
)
"""Where quotas are, how many levels below, and what their names there are of."""
_SCRAM = "SCRAM-SHA-"
_CREDENTIAL = re.compile(
    r"salt=([A-Za-z0-9+/=]+),stored_key=([A-Za-z0-9+/=]+),server_key=([A-Za-z0-9+/=]+),iterations=(\d{1,9})"
)


def parse_credentials(path: str, data: bytes) -> Iterator[entities.ScramUser]:
    for mechanism, value in configs(path, data).items():
        if not mechanism.startswith(_SCRAM):
            continue
        credential = _CREDENTIAL.fullmatch(value)
        if credential is None:
            raise strange(path, f"has a credential for {mechanism} of an unknown form")
        salt, stored_key, server_key, iterations = credential.groups()
        yield entities.ScramUser(
            user=name_of(path, last(path)),
            mechanism=mechanism,
            iterations=int(iterations),
            salt=salt,
            stored_key=stored_key,
            server_key=server_key,
        )


def parse_quotas(kinds: Iterable[Literal["user", "client-id", "ip"]], path: str, data: bytes) -> Iterator[ClientQuota]:
    """Yield the quota of a znode; none if it holds credentials alone."""
    names = path.split("/")[3::2]  # /config/users/U/clients/C
    entity: entities.QuotaEntity = {}
    for kind, name in zip(kinds, names, strict=True):
        entity[kind] = None if name == _DEFAULT else name_of(path, name)
    quotas: dict[str, float] = {}
    for name, value in configs(path, data).items():
        if name.startswith(_SCRAM):
            continue
        try:
            quotas[name] = float(value)
        except ValueError:
            quotas[name] = math.nan
        if not math.isfinite(quotas[name]):
            raise strange(path, f"has a {name} that is no number")
    if quotas:
        yield ClientQuota(entity=entity, quotas=quotas)


def parse_broker_configs(path: str, data: bytes) -> Iterator[BrokerConfig]:
    owner = last(path)
    if owner != _DEFAULT and not re.fullmatch(r"\d{1,10}", owner):
        raise strange(path, "is not named by the id of a broker")
    broker = None if owner == _DEFAULT else int(owner)
    for name, value in configs(path, data).items():
        known = None if entities.is_encrypted(value) else value  # only the brokers have the key
        yield BrokerConfig(broker=broker, name=name, value=known)


# Topics: their ids, partitions, replicas and configs. Those that wait for their deletion are not among them.


_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")


def _topics(collector: Collector) -> tuple[entities.TopicMetadata, ...] | None:
    """KRaft's copy leaves out what waits for its deletion, too."""
    leaving = {last(path) for path in collector.tree.below("/admin/delete_topics")}

    def path_alone(path: str, data: bytes) -> list[str]:
        return [path]

    def named_configs(path: str, data: bytes) -> list[tuple[str, dict[str, str]]]:
        return [(last(path), configs(path, data))]

    listed = collector.below("topics", "/brokers/topics", path_alone)
    found_configs = collector.below("topics", "/config/topics", named_configs)
    if listed is None or found_configs is None:
        return None
    configs_by_topic = dict(found_configs)
    paths = [path for path in listed if last(path) not in leaving]

    def with_configs(path: str, data: bytes) -> list[entities.TopicMetadata]:
        own = configs_by_topic.get(last(path), {})
        return [parse_topic(path, data, own)]

    return collector.each("topics", paths, with_configs)


def parse_topic(path: str, data: bytes, own: dict[str, str]) -> entities.TopicMetadata:
    topic = document(path, data)
    name = last(path)
    if not _NAME.fullmatch(name):
        raise strange(path, "is not named as a topic can be")
    partitions = member(path, topic, "partitions", dict)
    # Kafka numbers partitions from 0 without gaps, and the archive keeps their replicas in a row, which a gap would
    # shift.
    numbers = {str(number) for number in range(len(partitions))}
    if partitions.keys() != numbers:
        raise strange(path, "has partitions that are not numbered from 0 without gaps")
    replicas: list[tuple[int, ...]] = []
    for number in range(len(partitions)):
        brokers = partitions[str(number)]
        if not isinstance(brokers, list) or not all(type(broker) is int for broker in brokers):
            raise strange(path, f"has replicas of partition {number} that are no ids of brokers")
        replicas.append(tuple(brokers))
    written_id = topic.get("topic_id")
    topic_id = written_id if isinstance(written_id, str) else ""  # none before Kafka 2.8
    # A reassignment that is under way gives some partitions more replicas for a while.
    replication_factor = max((len(brokers) for brokers in replicas), default=0)
    return entities.TopicMetadata(
        name=name,
        id=topic_id,
        partitions=len(replicas),
        replication_factor=replication_factor,
        internal=name in entities.INTERNAL_TOPICS,
        configs=own,
        replicas=tuple(replicas),
    )


# Read the whole metadata that a cluster keeps in ZooKeeper.


_CONTROL = ("/controller", "/controller_epoch", "/migration")
"""The znodes with the controller of the cluster and the state of a migration."""


def read_zookeeper(options: ZooKeeperOptions) -> Reading:
    """Read ZooKeeper. Znodes that can't be parsed, or that our user may not read, are named in `not_carried`.

    `UnreachableError` where ZooKeeper doesn't answer, `MismatchError` if it has no cluster below the chroot."""
    with open_session(options) as session:
        return parse(read_tree(session))


def parse(tree: Tree) -> Reading:
    """Return the contents of a cluster's znodes. ZooKeeper holds neither configs of groups nor subscriptions to
    metrics. `MismatchError` without a cluster id: the address is not a Kafka cluster's."""
    path = "/cluster/id"
    if path not in tree.znodes:
        raise MismatchError(
            f"ZooKeeper has no znode {path} that can be read, so no Kafka cluster",
            "check the chroot at the end of zookeeper.connect",
        )
    cluster_id = member(path, document(path, tree.znodes[path]), "id", str)
    collector = Collector(tree)
    tokens = collector.below("delegation_tokens", "/delegation_token/tokens", parse_token)
    brokers = collector.below("broker_configs", "/config/brokers", parse_broker_configs)
    block_ends = collector.each("next_producer_id", ["/latest_producer_id_block"], parse_block_end)
    znodes = collector.each("znodes", _CONTROL, _znode)
    literal_acls = collector.below("acls", "/kafka-acl", parse_acls, levels=2)
    other_acls = collector.below("acls", "/kafka-acl-extended", parse_acls, levels=3)
    quotas: list[tuple[ClientQuota, ...] | None] = []
    for root, levels, kinds in QUOTAS:
        quotas.append(collector.below("client_quotas", root, partial(parse_quotas, kinds), levels))
    topics = _topics(collector)
    users = collector.below("scram_users", "/config/users", parse_credentials)
    features = collector.each("features", ["/feature"], parse_features)
    # Only brokers that are alive: their znodes go with their sessions.
    registrations = collector.below("registrations", "/brokers/ids", parse_registration)
    deletions = collector.below("deletions", "/admin/delete_topics", _name_alone)
    # After all that is collected, which notes what could not be read.
    not_carried = [*collector.not_carried(), *_secrets(tokens or (), brokers or ())]
    next_producer_id = block_ends[0] if block_ends else None
    return Reading(
        source="zookeeper",
        cluster_id=cluster_id,
        topics=topics,
        acls=_joined([literal_acls, other_acls]),
        scram_users=users,
        broker_configs=brokers,
        client_quotas=_joined(quotas),
        delegation_tokens=tokens,
        features=features,
        registrations=registrations,
        deletions=deletions,
        next_producer_id=next_producer_id,
        znodes=znodes,
        not_carried=tuple(not_carried),
        is_led_by_broker=_is_led_by_broker(znodes),
    )


def _znode(path: str, data: bytes) -> list[entities.Znode]:
    return [entities.Znode(path=path, content=content(data))]


def _name_alone(path: str, data: bytes) -> list[str]:
    return [last(path)]


def _is_led_by_broker(znodes: Iterable[entities.Znode]) -> bool:
    """Return whether the controller of /controller is a broker: a KRaft controller writes its epoch there."""
    for znode in znodes:
        if znode.path == "/controller":
            controller = document(znode.path, znode.content)
            return int(controller.get("kraftControllerEpoch", -1)) < 0
    return False


def _joined(parts: Iterable[tuple[T, ...] | None]) -> tuple[T, ...] | None:
    """Return the entities of all parts; None if one of the parts may not be read."""
    entities_of_all: list[T] = []
    for part in parts:
        if part is None:
            return None
        entities_of_all += part
    return tuple(entities_of_all)


def _secrets(tokens: tuple[DelegationToken, ...], brokers: tuple[BrokerConfig, ...]) -> Iterator[NotCarried]:
    reason: entities.Reason = "not supported"
    if tokens:
        why = "ZooKeeper doesn't hold the HMACs"
        yield NotCarried(part="delegation_tokens", what=entities.TOKEN_SECRETS, reason=reason, why=why)
    if any(config.value is None for config in brokers):
        why = "they are encrypted in ZooKeeper with the brokers' own key"
        yield NotCarried(part="broker_configs", what=entities.BROKER_SECRETS, reason=reason, why=why)
