"""Requests made by hand, for what client libraries won't send or tell, and groups in memory that behave as a broker's.

Of producers: records as they are, and producers' ids. Of groups: members of share and streams groups, and commits with
any bytes as group id and metadata; all but OffsetFetch go to the first broker, which has to be the groups' coordinator.

Source of the bytes: the Kafka protocol guide, Produce version 8 (the last without compact fields; Kafka 4
serves it), InitProducerId version 0 and the record batch of magic 2; Kafka's message definitions: OffsetCommit 7,
OffsetFetch 5, DeleteGroups 0, FindCoordinator 0, ShareGroupHeartbeat 1 and StreamsGroupHeartbeat 0.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import NamedTuple, cast

from awscrt.checksums import crc32c
from confluent_kafka.admin import AdminClient

from kbackup.kafka.control.cluster import Cluster
from kbackup.types import CommittedOffset, TopicPartition
from kbackup.util.text import plural

Header = tuple[bytes, bytes | None]
Record = tuple[bytes | None, bytes | None, int, Sequence[Header]]
"""Key, value, timestamp in ms since the epoch (-1: none), headers."""

NO_TIMESTAMP = -1
_PRODUCE, _VERSION, _CORRELATION = 0, 8, 7
_ALL_IN_SYNC, _TIMEOUT_MS = -1, 30_000
_NOT_YET = {3, 6}  # unknown topic or partition, not its leader
_NEW_PRODUCER, _NO_BLOCK_YET = 22, {14, 15}
_NO_PRODUCER = struct.pack(">qhi", -1, -1, -1)


def raw_produce(bootstrap: str, topic: str, partition: int, records: Sequence[Record]) -> int:
    """Append `records` as one batch to a partition (plain text listener); returns the first one's offset."""
    until = time.monotonic() + _TIMEOUT_MS / 1000
    while True:
        error, base_offset = _produce(bootstrap, topic, partition, records)
        if error not in _NOT_YET or time.monotonic() > until:
            break
        time.sleep(0.1)  # the topic is so new that its leader does not know yet
    if error:
        raise RuntimeError(f"{topic}-{partition}: the broker refused the batch with error code {error}")
    return base_offset


def new_producer_id(bootstrap: str) -> int:
    """The id that the first broker gives to a producer without transactions (plain text listener)."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    until = time.monotonic() + _TIMEOUT_MS / 1000
    body = struct.pack(">hhihhi", _NEW_PRODUCER, 0, _CORRELATION, -1, -1, _TIMEOUT_MS)
    while True:
        error, producer_id = struct.unpack_from(">hq", _ask(host, int(port), body), 4 + 4)
        if error not in _NO_BLOCK_YET or time.monotonic() > until:
            break
        time.sleep(0.1)  # the broker asks the controller for its first block
    if error:
        raise RuntimeError(f"the broker gave no producer id: error code {error}")
    return int(producer_id)


def _produce(bootstrap: str, topic: str, partition: int, records: Sequence[Record]) -> tuple[int, int]:
    """The broker's error code and the base offset."""
    host, port = _leader(bootstrap, topic, partition)
    name, batch = topic.encode(), record_batch(records)
    body = b"".join(
        (
            struct.pack(">hhihh", _PRODUCE, _VERSION, _CORRELATION, -1, -1),  # no client id, no transaction
            struct.pack(">hi", _ALL_IN_SYNC, _TIMEOUT_MS),
            struct.pack(">ih", 1, len(name)) + name,
            struct.pack(">iii", 1, partition, len(batch)) + batch,
        )
    )
    answer = _ask(host, port, body)
    # correlation, topic count, name, partition count, partition, error, base offset
    error, base_offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    return error, base_offset


def _ask(host: str, port: int, body: bytes) -> bytes:
    with socket.create_connection((host, port), timeout=_TIMEOUT_MS / 1000) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            return stream.read(size)


def record_batch(records: Sequence[Record], attributes: int = 0) -> bytes:
    """A batch of magic 2, uncompressed; `attributes` as in its header."""
    base = records[0][2]
    encoded = b"".join(_record(number, base, record) for number, record in enumerate(records))
    timestamps = [record[2] for record in records]
    checked = b"".join(
        (
            struct.pack(">hiqq", attributes, len(records) - 1, base, max(timestamps)),
            _NO_PRODUCER,
            struct.pack(">i", len(records)),
            encoded,
        )
    )
    after_length = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


def _record(number: int, base: int, record: Record) -> bytes:
    key, value, timestamp, headers = record
    body = b"\0" + _varint(timestamp - base) + _varint(number) + _bytes(key) + _bytes(value) + _varint(len(headers))
    body += b"".join(_bytes(name) + _bytes(content) for name, content in headers)
    return _varint(len(body)) + body


def _bytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Zigzag, then seven bits a byte, lowest first."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _leader(bootstrap: str, topic: str, partition: int) -> tuple[str, int]:
    cluster = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30)
    broker = cluster.brokers[cluster.topics[topic].partitions[partition].leader]
    return str(broker.host), broker.port


Place = tuple[str, int]
Held = tuple[int, int | None, str]
"""Offset, leader epoch, metadata."""


@dataclass
class FakeGroups:
    """`held` is what each group has committed. `calls` names what was written, in order. Groups of `shared` have to be
    asked about as share groups, and no others. A commit is refused in the `refused` places, and taken in the others."""

    held: dict[str, dict[Place, Held]] = field(default_factory=dict)
    live: dict[str, int] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    refused: set[Place] = field(default_factory=set)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def members(self, groups: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        return {g: plural(self.live[g], "live member") if g in self.live else "" for g in groups}, {}

    def committed(
        self, groups: Iterable[str], share: Container[str] = ()
    ) -> tuple[dict[str, list[CommittedOffset]], dict[str, str]]:
        asked = set(groups)
        self._check_kinds(asked, share)
        readable = asked - self.unreadable
        return {
            group: [
                CommittedOffset(TopicPartition(*place), *held)
                for place, held in sorted(self.held.get(group, {}).items())
            ]
            for group in readable
        }, dict.fromkeys(asked & self.unreadable, "it can't be read")

    def commit_all(
        self, offsets_by_group: Mapping[str, Sequence[CommittedOffset]], share: Container[str] = ()
    ) -> dict[str, str]:
        answers = {}
        self._check_kinds(offsets_by_group, share)
        for group, offsets in offsets_by_group.items():
            self.calls.append(("commit", group))
            if self.live.get(group):
                answers[group] = "unknown member"
                continue
            own = self.held.setdefault(group, {})
            answers[group] = ""
            for each in offsets:
                if each.tp in self.refused:
                    answers[group] = f"{each.tp}: the metadata is too large"
                else:
                    own[each.tp] = (each.offset, each.leader_epoch, each.metadata)
        return answers

    def remove(
        self, offsets_by_group: Mapping[str, Sequence[CommittedOffset]], share: Container[str] = ()
    ) -> dict[str, str]:
        self._check_kinds(offsets_by_group, share)
        for group, offsets in offsets_by_group.items():
            self.calls.append(("remove", group))
            for each in offsets:
                del self.held[group][each.tp.topic, each.tp.partition]
        return dict.fromkeys(offsets_by_group, "")

    def _check_kinds(self, groups: Iterable[str], share: Container[str]) -> None:
        assert {group for group in groups if group in share} == self.shared.intersection(groups)

    def delete_each(self, groups: Iterable[str]) -> dict[str, str]:
        answers = {}
        for group in groups:
            self.calls.append(("delete", group))
            answers[group] = "not empty" if self.live.get(group) else ""
            if not answers[group]:
                self.held.pop(group, None)
        return answers


@dataclass
class FakeCluster:
    groups: FakeGroups
    cluster_id: str = "target"

    def connect(self) -> tuple[str, int]:
        return self.cluster_id, 1

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self)


_FIND_COORDINATOR, _OFFSET_FETCH = (10, 0), (9, 5)
_OFFSET_COMMIT, _SHARE_HEARTBEAT, _STREAMS_HEARTBEAT = (8, 7), (76, 1), (88, 0)
_COORDINATOR_NOT_READY = {14, 15, 16}
_PATIENCE = 30.0  # s
_DELETE_GROUPS = (42, 0)
_JOIN, _LEAVE = 0, -1  # member epochs
_TAGS, _NULL = b"\0", b"\0"
Stand = dict[tuple[str, int], tuple[int, int | None, str]]
"""Offset, leader epoch and metadata by topic and partition."""


class RawCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: bytes | None


def raw_commit(bootstrap: str, group: bytes, commit: RawCommit) -> int:
    """Commit an offset for a group without members; returns the broker's error code for that partition."""
    place = struct.pack(">iqi", commit.partition, commit.offset, commit.leader_epoch) + _text(commit.metadata)
    topic = _text(commit.topic.encode()) + struct.pack(">i", 1) + place
    body = _text(group) + struct.pack(">i", -1) + _text(b"") + _text(None) + struct.pack(">i", 1) + topic
    return _until_ready(bootstrap, *_OFFSET_COMMIT, body, flexible=False)


def raw_positions(bootstrap: str, group: str) -> Stand:
    """All that a group has committed, to the byte: client libraries read metadata in ways of their own."""
    body = _text(group.encode()) + struct.pack(">i", -1)
    until = time.monotonic() + _PATIENCE
    while True:
        answer = _send(_coordinator(bootstrap, group), *_OFFSET_FETCH, body, flexible=False)
        (error,) = struct.unpack(">h", answer[-2:])
        if error not in _COORDINATOR_NOT_READY or time.monotonic() > until:
            break
        time.sleep(0.2)
    assert error == 0, f"{group}: the broker says error code {error}"
    return _stand(BytesIO(answer[4:]))


def _stand(answer: BytesIO) -> Stand:
    def number(form: str) -> int:
        (positions,) = struct.unpack(form, answer.read(struct.calcsize(form)))
        return int(positions)

    def text() -> str:
        return answer.read(max(0, number(">h"))).decode()

    positions: Stand = {}
    for _ in range(number(">i")):
        topic = text()
        for _ in range(number(">i")):
            partition, offset, epoch = number(">i"), number(">q"), number(">i")
            metadata, error = text(), number(">h")
            assert error == 0, f"{topic}-{partition}: error code {error}"
            if offset >= 0:
                positions[topic, partition] = (offset, epoch if epoch >= 0 else None, metadata)
    return positions


def _coordinator(bootstrap: str, group: str) -> str:
    until = time.monotonic() + _PATIENCE
    while True:
        answer = _send(bootstrap, *_FIND_COORDINATOR, _text(group.encode()), flexible=False)
        error, _, length = struct.unpack_from(">hih", answer)
        if not error:
            (port,) = struct.unpack_from(">i", answer, 8 + length)
            return f"{answer[8 : 8 + length].decode()}:{port}"
        assert time.monotonic() < until, f"{group} has no coordinator: error code {error}"
        time.sleep(0.2)


def raw_delete(bootstrap: str, group: bytes) -> int:
    """Delete a group of any kind; returns the broker's error code."""
    return _until_ready(bootstrap, *_DELETE_GROUPS, struct.pack(">i", 1) + _text(group), flexible=False)


@contextmanager
def share_member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """A member of a share group, which is deleted at the end."""

    def heartbeat(epoch: int) -> None:
        body = _compact(group) + _compact(member) + struct.pack(">i", epoch) + _NULL
        _heartbeat(bootstrap, *_SHARE_HEARTBEAT, body + _array([_compact(topic)]) + _TAGS)

    member = str(uuid.uuid4())
    with _joined(bootstrap, group, heartbeat):
        yield


@contextmanager
def streams_member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """The same of a streams group whose topology only reads `topic`."""
    none = _array([])
    subtopology = _compact("0") + _array([_compact(topic)]) + none * 5 + _TAGS
    topology = b"\1" + struct.pack(">i", 1) + _array([subtopology]) + _TAGS

    def heartbeat(epoch: int) -> None:
        body = b"".join(
            (
                _compact(group) + _compact(member) + struct.pack(">ii", epoch, 0),
                _NULL * 2 + struct.pack(">i", 60_000) + (topology if epoch == 0 else b"\xff"),
                none * 3,  # tasks
                _compact("process") + b"\xff" + none,  # no endpoint, no tags
                _NULL * 2 + b"\0" + _TAGS,
            )
        )
        _heartbeat(bootstrap, *_STREAMS_HEARTBEAT, body)

    member = str(uuid.uuid4())
    with _joined(bootstrap, group, heartbeat):
        yield


@contextmanager
def _joined(bootstrap: str, group: str, heartbeat: Callable[[int], None]) -> Iterator[None]:
    heartbeat(_JOIN)
    try:
        yield
    finally:
        heartbeat(_LEAVE)
        assert raw_delete(bootstrap, group.encode()) == 0


def _heartbeat(bootstrap: str, api: int, version: int, body: bytes) -> None:
    if error := _until_ready(bootstrap, api, version, body, flexible=True):
        raise RuntimeError(f"api {api}: the broker refused the member with error code {error}")


def _until_ready(bootstrap: str, api: int, version: int, body: bytes, flexible: bool) -> int:
    """The broker's error code, once the group's coordinator is there."""
    until = time.monotonic() + _PATIENCE
    while True:
        answer = _send(bootstrap, api, version, body, flexible)
        # after the throttle time, or the last of all
        (error,) = struct.unpack_from(">h", answer, 4) if flexible else struct.unpack(">h", answer[-2:])
        if error not in _COORDINATOR_NOT_READY or time.monotonic() > until:
            return int(error)
        _send(bootstrap, *_FIND_COORDINATOR, _text(b"any"), flexible=False)  # makes the offsets topic
        time.sleep(0.2)


def _send(bootstrap: str, api: int, version: int, body: bytes, flexible: bool) -> bytes:
    """The response without its header."""
    host, _, port = bootstrap.partition(",")[0].partition(":")
    header = struct.pack(">hhih", api, version, 7, -1) + (_TAGS if flexible else b"")
    message = header + body
    with socket.create_connection((host, int(port)), timeout=_PATIENCE) as connection:
        connection.sendall(struct.pack(">i", len(message)) + message)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(size)
    return answer[5:] if flexible else answer[4:]


def _text(data: bytes | None) -> bytes:
    return struct.pack(">h", -1) if data is None else struct.pack(">h", len(data)) + data


def _compact(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 0x7F  # one byte of length
    return bytes([len(data) + 1]) + data


def _array(items: Sequence[bytes]) -> bytes:
    return bytes([len(items) + 1]) + b"".join(items)
