"""What the server and those who answer requests agree on: connections, requests, the table of APIs, and errors.

An answerer (the cluster, records, groups, logins) gives the server a list of `Api`: for each request of Kafka's which
versions it answers, and by which function. What a client hears about versions is made of these lists, so it is true.

A function that answers takes a `ClientRequest` and returns the response message (kafka-python's, without a version), or
None where Kafka's protocol has no answer (Produce with acks=0). It may wait as long as it likes: requests of other
connections go on. As with a broker, the next request of the same connection begins when this one is answered. When the
client goes away, the function is cancelled (`asyncio.CancelledError`), and `ClientConnection.closing` is true.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import numpy as np

from kbackup.types import CommittedOffset

Handler = Callable[["ClientRequest"], Awaitable[Any | None]]
"""A function that answers one kind of request."""

Gate = Callable[["ClientRequest"], None]
"""What every request passes before it is answered. Raises `RequestRefusedError` or `HostileClientError`."""

READ_ONLY = "read-only: an archive"
"""The words of a response that refuses to write."""

LARGEST_FRAME = 16 << 20
"""The largest request that is read, in bytes: one with records, which is refused in words and not by closing the
connection."""

_PRODUCE, _FETCH, _OFFSET_COMMIT, _OFFSET_FETCH, _JOIN, _SYNC, _HEARTBEAT = 0, 1, 8, 9, 11, 14, 68
_LARGE = 4 << 20
_USUAL = 1 << 20


def largest_frame(key: int) -> int:
    """Return how many bytes a request of an API may have. Consumers name every partition in some; of the others a few
    bytes can be a list of many things, which takes a hundred times their memory."""
    if key == _PRODUCE:
        return LARGEST_FRAME
    return _LARGE if key in (_FETCH, _OFFSET_COMMIT, _OFFSET_FETCH, _JOIN, _SYNC, _HEARTBEAT) else _USUAL


MOST_ELEMENTS = 200_000
"""Elements of all lists of a request, at most."""

LARGEST_FRAME_BEFORE_LOGIN = 64 << 10
"""The largest request of a client that has yet to log in."""

LONGEST_RUN = 32 << 10
"""Bytes in a row that have their first bit set, at most: more than any text that a client sends to a group."""
_FIRST_BIT = 0x80

_VARINT_BITS = 28
"""The shift of the fifth and last byte of a number of 32 bits."""


class ErrorCode(IntEnum):
    """Kafka's error codes, as far as they are answered."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNKNOWN_LEADER_EPOCH = 75
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    RESOURCE_NOT_FOUND = 91
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_REGULAR_EXPRESSION = 128


class HostileClientError(Exception):
    """What came is no request of Kafka's, or breaks a bound. The connection is closed, as a broker does it."""


class RequestRefusedError(Exception):
    """A request that fails as a whole: Kafka's error `code`, and a message where the response has room for one.

    The server makes the response of it: the code stands wherever the response can have one, for each topic, partition
    or group that the request names."""

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(message or f"error {code}")
        self.code = code
        self.message = message


@dataclass(slots=True, eq=False)
class ClientConnection:
    """A client's connection, from its first byte to its last."""

    host: str
    """The client's address, without its port."""

    encrypted: bool = False
    """Whether the connection is one of TLS."""

    principal: str | None = None
    """The user who has logged in, None before. Without a file of users nobody logs in."""

    client_id: str = ""
    """What the client calls itself, by its last request."""

    software: str = ""
    """The client's library and version, as ApiVersions names it."""

    closing: bool = False
    """Whether the client has gone away, or the server is about to close the connection after the present answer: a
    function that answers may set it, after a login that failed for instance."""

    login: Any = None
    """What a login keeps between its messages, and after it; nobody else touches it."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientRequest:
    """One request: the decoded message, its version, and where it came from."""

    message: Any
    version: int
    connection: ClientConnection


class Api(NamedTuple):
    """A request of Kafka's that is answered, in the versions `oldest` to `newest` (inclusive)."""

    request: Any
    """kafka-python's class of the request."""

    response: Any
    """kafka-python's class of the response."""

    oldest: int
    newest: int
    answer: Handler

    @property
    def key(self) -> int:
        return int(self.request.API_KEY)


class ServedTopic(NamedTuple):
    """A topic that is served; its partitions are 0 to `partitions` - 1."""

    name: str
    topic_id: UUID
    partitions: int


class ServedContents(Protocol):
    """What is served at the moment. With `--follow` it changes: ask anew for each request, and keep nothing of it."""

    def topics(self) -> Mapping[str, ServedTopic]:
        """Return the served topics by name."""

    def groups(self) -> Mapping[str, Sequence[CommittedOffset]]:
        """Return the archived groups with their committed offsets of served topics."""

    def address(self) -> tuple[str, int]:
        """Return the host and port that clients are told: of the one broker, and so of every coordinator."""


BROKER_ID = 1
"""The number of the one broker."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The head of a request: which API in which version, the number that the answer repeats, and the client's name."""

    key: int
    version: int
    correlation: int
    client_id: str
    body: memoryview = field(repr=False)
    """What follows client id, including the tagged fields of a flexible header."""


def read_header(frame: bytes) -> RequestHeader:
    """Read the head of a request. Raise `HostileClientError` if there is none."""
    try:
        key, version, correlation, length = struct.unpack_from(">hhih", frame)
    except struct.error as error:
        raise HostileClientError("a request without a head") from error
    end = 10 + max(length, 0)
    if end > len(frame) or length < -1:
        raise HostileClientError("a client id that is longer than its request")
    client_id = frame[10:end].decode("utf-8", "replace")
    return RequestHeader(key, version, correlation, client_id, memoryview(frame)[end:])


def _check_numbers(body: memoryview) -> None:
    """Raise `HostileClientError` for a number that would take long to read: kafka-python goes on as long as bytes have
    their first bit set, and the time grows with the square of their count."""
    if len(body) <= LONGEST_RUN:
        return
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) < _FIRST_BIT)
    runs = np.diff(ends, prepend=-1, append=len(body)) - 1
    if runs.max() > LONGEST_RUN:
        raise HostileClientError("a number without an end")


def decode_request(api: Api, header: RequestHeader) -> Any:
    """Decode a request of a version that `api` answers. Raise `HostileClientError` if it can't be read."""
    body = header.body
    if api.request.flexible_version_q(header.version):
        body = _skip_tagged_fields(body)
    _check_numbers(body)
    try:
        message = api.request.decode(body, version=header.version)
    except (
        ValueError,
        IndexError,
        struct.error,
        AssertionError,
        TypeError,
        KeyError,
        MemoryError,
        OverflowError,
    ) as error:
        raise HostileClientError(f"a request {api.request.name} that can't be read: {error!r}") from error
    _check_content(message, _fields_of_request(api.request, header.version))
    return message


def fields_in_version(structure: Any, version: int) -> list[Any]:
    """Return the fields of a message or a structure, as kafka-python describes them, that are there in a version."""
    fields = structure.fields.values() if isinstance(structure.fields, Mapping) else structure.fields
    return [field for field in fields if field.for_version_q(version)]


class _FieldToCheck(NamedTuple):
    """A field of a structure, to look at before anybody works with it: whether it may be null, and the fields to check
    of its own structures."""

    name: str
    nullable: bool
    of_each: tuple[_FieldToCheck, ...]


@cache
def _fields_of_request(request: Any, version: int) -> tuple[_FieldToCheck, ...]:
    return _fields_to_check(request, version)


def _fields_to_check(structure: Any, version: int) -> tuple[_FieldToCheck, ...]:
    """Return the lists of a message or a structure, and the fields that may hold a null where none may be: kafka-python
    reads the length -1 everywhere. Most structures in long lists have only numbers, and need no check."""
    found: list[_FieldToCheck] = []
    for each in fields_in_version(structure, version):
        if each.is_struct():
            continue
        of_each = _fields_to_check(each, version) if each.is_struct_array() else ()
        nullable = each.nullable_for_version_q(version)
        has_length = each.is_array() or each.is_struct_array() or each.type_str in ("string", "bytes", "records")
        is_list = each.is_array() or each.is_struct_array()
        if is_list or (has_length and not nullable):
            found.append(_FieldToCheck(each.name, nullable, of_each))
    return tuple(found)


def _check_content(message: Any, fields: tuple[_FieldToCheck, ...]) -> int:
    """Raise `HostileClientError` for a null where Kafka's schema has none, and for lists of too many elements. Return
    how many elements there are."""
    count = 0
    for each in fields:
        value = getattr(message, each.name)
        if value is None:
            if not each.nullable:
                raise HostileClientError(f"a null in place of {each.name}")
        elif isinstance(value, list):
            count += len(value)
            if each.of_each:
                for element in value:
                    count += _check_content(element, each.of_each)
            if count > MOST_ELEMENTS:
                raise HostileClientError(f"more than {MOST_ELEMENTS} elements in {each.name}")
    return count


def _skip_tagged_fields(body: memoryview) -> memoryview:
    """Return what follows the tagged fields of a head: Kafka knows none, and new ones are skipped."""
    count, at = _read_varint(body, 0)
    for _ in range(count):
        _tag, at = _read_varint(body, at)
        size, at = _read_varint(body, at)
        at += size
        if at > len(body):
            raise HostileClientError("a tagged field that is longer than its request")
    return body[at:]


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _VARINT_BITS + 1, 7):
        if at >= len(data):
            raise HostileClientError("a request that ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise HostileClientError("a number of more than 32 bits")
