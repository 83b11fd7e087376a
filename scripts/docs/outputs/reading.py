"""Documents of commands that read an archive, composed of several values for `--json`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from kbackup.archive.query.groups import GroupOverview
from kbackup.archive.query.overview import PointOverview, TopicOverview
from kbackup.archive.segments.window import Choice


class LeaseFields(TypedDict):
    command: str
    host: str
    pid: int
    acquired_at: str
    expires_at: str


class ListOutput(TypedDict):
    archive: str
    archive_id: str
    restore_points: list[PointOverview]
    let_go: int
    held_by: LeaseFields | None


class InfoTopicOutput(TypedDict):
    archive: str
    restore_point: int | None
    topic: TopicOverview
    choice: NotRequired[Choice]


class _Listing(TypedDict):
    archive: str
    restore_point: int | None
    committed_at: str | None
    choice: NotRequired[Choice]


class _Sums(TypedDict):
    records: int
    bytes: int
    stored_bytes: int
    min_timestamp: int | None
    max_timestamp: int | None


class TopicRow(_Sums):
    topic: str
    incarnation: int
    state: str
    as_of: int | None
    partitions: int
    segments: int


class PartitionRow(_Sums):
    partition: int
    start: int
    end: int
    segments: int


class SegmentRow(_Sums):
    first: int
    last: int
    largest: int
    crc: str | None
    file: str


class TopicsOutput(_Listing):
    topics: list[TopicRow]


class PartitionsOutput(_Listing):
    partitions: list[PartitionRow]


class SegmentsOutput(_Listing):
    segments: list[SegmentRow]


class Header(TypedDict):
    key: Any
    value: Any


class RecordOutput(TypedDict):
    """A line of `cat` and `find`. Bytes that are not UTF-8 are {"base64": "…"}; a decoded part is its JSON."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: Literal["CreateTime", "NoTimestampType", "LogAppendTime"]
    key: Any
    value: Any
    headers: list[Header]
    key_schema: NotRequired[Any]
    value_schema: NotRequired[Any]
    key_error: NotRequired[str]
    value_error: NotRequired[str]


class UiOutput(TypedDict):
    url: str
    archive: str


class GroupOutput(TypedDict):
    archive: str
    restore_point: int | None
    captured_at: str | None
    group: GroupOverview
