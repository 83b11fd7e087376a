"""Group requests made by hand, for what client libraries won't send: members of share and streams groups, and commits
with any bytes as group id and metadata.

Source of the bytes: Kafka's message definitions: OffsetCommit 7, ShareGroupHeartbeat 1 and StreamsGroupHeartbeat 0.
All go to the first broker, which has to be the groups' coordinator.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Sequence
from typing import NamedTuple

_FIND_COORDINATOR = (10, 0)
_OFFSET_COMMIT, _SHARE_HEARTBEAT, _STREAMS_HEARTBEAT = (8, 7), (76, 1), (88, 0)
_COORDINATOR_NOT_READY = {14, 15, 16}
_PATIENCE = 30.0  # s
_TAGS, _NULL = b"\0", b"\0"


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


def join_share_group(bootstrap: str, group: str, topic: str) -> None:
    """A member that joins and then says nothing more."""
    body = _compact(group) + _compact(str(uuid.uuid4())) + struct.pack(">i", 0) + _NULL
    _heartbeat(bootstrap, *_SHARE_HEARTBEAT, body + _array([_compact(topic)]) + _TAGS)


def join_streams_group(bootstrap: str, group: str, topic: str) -> None:
    """The same for a topology that only reads `topic`."""
    none = _array([])
    subtopology = _compact("0") + _array([_compact(topic)]) + none * 5 + _TAGS
    topology = b"\1" + struct.pack(">i", 1) + _array([subtopology]) + _TAGS
    body = b"".join(
        (
            _compact(group) + _compact(str(uuid.uuid4())) + struct.pack(">ii", 0, 0),
            _NULL * 2 + struct.pack(">i", 60_000) + topology,
            none * 3,  # tasks
            _compact("process") + b"\xff" + none,  # no endpoint, no tags
            _NULL * 2 + b"\0" + _TAGS,
        )
    )
    _heartbeat(bootstrap, *_STREAMS_HEARTBEAT, body)


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
