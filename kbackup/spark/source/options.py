"""Read the options of `spark.read.format("kbackup")`, and the configuration that reaches the archive."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from kbackup.archive import layout
from kbackup.archive.identity import check_archive_id
from kbackup.archive.query.selection import Selection
from kbackup.archive.query.window import Window
from kbackup.archive.segments.parallel import PART_BYTES
from kbackup.config import Files, Origin, Setting, load, parse_range, parse_size, parse_time
from kbackup.config.load import TRUST_OPTIONS
from kbackup.config.values import has_reference
from kbackup.config.windows import RANGES, TIMES
from kbackup.errors import UsageError
from kbackup.spark.source.filters import Ranges, joined
from kbackup.store import Store, open_store
from kbackup.types import TopicPartition

OPTIONS = {
    "archive": "where the archive is: s3://bucket/prefix or a path; also the argument of load()",
    "topics": "topics, with commas between: names or /regex/",
    "topicPattern": "a regular expression that whole names of topics match",
    "restorePoint": "the restore point: its number, its label, or latest",
    "fromTime": "records from this time on, itself included",
    "toTime": "records up to this time, itself included",
    "ranges": "these offsets alone: topic:partition:from-to, with commas between",
    "columns": "the columns to read, with commas between",
    "includeHeaders": "false leaves the column headers out",
    "pushFilters": "true leaves unread what filters exclude, where each query has a filter",
    "partitionBytes": "small segments are read by one task up to this size",
    "startingRestorePoint": "of a stream: the restore point that it begins with, earliest or latest",
    "failOnDataLoss": "of a stream: false goes on where records expired before it had them",
    "config": "a configuration file of kbackup, where the driver allows it",
}
"""Without regard to case, beside `encryption.key` and all keys of `[s3]` (`s3.region`)."""

TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "segment": "string",
}
"""The columns of `tables.SCHEMA`, as Spark calls their types."""

_RENAMED = {"backup": "restorePoint", "startingbackup": "startingRestorePoint"}
"""Former names of options, which keep working."""

_SPELLED = {name.lower(): name for name in (*OPTIONS, "path")} | _RENAMED
_MOST = 2**63 - 1

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """`ranges` None: all offsets; else those of a partition that is not in it are not wanted."""

    archive: str
    settings: tuple[Setting, ...] = field(repr=False)
    config: str | None
    topics: Selection
    restore_point: str
    times: Window
    ranges: Mapping[TopicPartition, Ranges] | None
    columns: tuple[str, ...]
    push_filters: bool
    partition_bytes: int
    starting: str
    fail_on_data_loss: bool

    @property
    def selection(self) -> Selection:
        """The topics that are asked for, by `topics` or by `ranges`."""
        if self.ranges is None:
            return self.topics
        return Selection(tuple(sorted({tp.topic for tp in self.ranges})))

    def store(self) -> Store:
        """`encryption.key` and `[s3]` as options say, else the environment of the driver, else its file."""
        config = load(self.settings, Files(config=self.config)).config
        url, key = self.archive or config.archive or "", config.encryption.key or ""
        store = open_store(url, config.s3, key, archive_id=config.archive_id, key_class=layout.key_class)
        check_archive_id(store, config.archive_id)
        return store


class _Options(NamedTuple):
    """Some by their name in `OPTIONS`, and `settings` by the path of their key."""

    named: dict[str, str]
    settings: tuple[Setting, ...]

    def __call__(self, name: str, default: str = "") -> str:
        return self.named.get(name, default).strip()

    def items(self, name: str) -> tuple[str, ...]:
        return tuple(item.strip() for item in self(name).split(",") if item.strip())

    def convert(self, name: str, text: str, to: Callable[[str], T], expected: str) -> T:
        """Convert an option by `to`; raise `UsageError` where `to` raises `ValueError`."""
        try:
            return to(text)
        except ValueError:
            raise UsageError(f"option {name}: {text} can't be used", f"give {expected}") from None

    def flag(self, name: str, default: str = "true") -> bool:
        text = self(name, default).lower()
        if text not in ("true", "false"):
            raise UsageError(f"option {name}: {text} can't be used", "give true or false")
        return text == "true"


def request_of(options: Mapping[str, str]) -> Request:
    """Parse the options of a query. `UsageError` names the option that can't be used."""
    given = _sorted_out(options)
    archive = given("archive", given("path"))
    if given("archive") and given("path", archive) != archive:
        raise UsageError("the archive is named twice", "give option archive, or the argument of load()")
    return Request(
        archive=archive,
        settings=given.settings,
        config=given("config") or None,
        topics=_topics(given),
        restore_point=given("restorePoint", "latest"),
        times=_times(given),
        ranges=_ranges(given),
        columns=_columns(given),
        push_filters=given.flag("pushFilters", "false"),
        partition_bytes=given.convert(
            "partitionBytes", given("partitionBytes", str(PART_BYTES)), parse_size, "a size such as 64MiB"
        ),
        starting=given("startingRestorePoint", "earliest"),
        fail_on_data_loss=given.flag("failOnDataLoss"),
    )


def _sorted_out(options: Mapping[str, str]) -> _Options:
    named: dict[str, str] = {}
    settings: list[Setting] = []
    for key, value in options.items():
        _check_allowed(key, value)
        if name := _SPELLED.get(key.lower()):
            named[name] = value
        elif key.lower() == "encryption.key" or key.lower().startswith("s3."):
            settings.append(Setting(key.lower(), value, Origin("option", key)))
        else:
            near = difflib.get_close_matches(key.lower(), [*_SPELLED, "encryption.key"], n=1)
            hint = (
                f"did you mean {_SPELLED.get(near[0], near[0])}?"
                if near
                else f"there are {', '.join(OPTIONS)}"
            )
            raise UsageError(
                f"there is no option {key}", f"{hint}, encryption.key and s3.…" if not near else hint
            )
    return _Options(named, tuple(settings))


def _check_allowed(key: str, value: str) -> None:
    """Raise `UsageError` for an option that runs a command on the driver or reads its files or variables, unless the
    driver's environment allows these: the author of a query is not always the operator of the driver."""
    if os.environ.get(TRUST_OPTIONS) == "1":
        return
    if key.lower() == "config":
        refused = "a configuration file, which may name commands,"
    elif key.lower() == "encryption.key" and value.partition(":")[0] == "command":
        refused = "a command: key"
    elif has_reference(value):
        refused = "a reference to a file or variable"
    else:
        return
    raise UsageError(
        f"option {key}: {refused} is refused in options",
        f"set it by KBACKUP_… variables or kbackup.toml of the driver, or set {TRUST_OPTIONS}=1 there",
    )


def _topics(given: _Options) -> Selection:
    pattern = given("topicPattern")
    if pattern and (given("topics") or given("ranges")):
        raise UsageError("option topicPattern goes with neither topics nor ranges", "leave one out")
    if given("topics") and given("ranges"):
        raise UsageError("option ranges names its topics itself", "leave topics out")
    return Selection.of((f"/{pattern}/",) if pattern else given.items("topics"), ())


def _times(given: _Options) -> Window:
    now = int(time.time() * 1000)

    def moment(name: str, *, up: bool) -> int | None:
        text = given(name)
        return given.convert(name, text, lambda text: parse_time(text, now, up=up), TIMES) if text else None

    start, end = moment("fromTime", up=True), moment("toTime", up=False)
    if start is not None and end is not None and start > end:
        raise UsageError(
            f"option fromTime {given('fromTime')} is later than toTime {given('toTime')}",
            "change their order: both bounds are included, and fromTime is the earlier one",
        )
    return Window(from_time=start, to_time=end)


def _ranges(given: _Options) -> Mapping[TopicPartition, Ranges] | None:
    if not given("ranges"):
        return None
    ranges_by_partition: dict[TopicPartition, list[tuple[int, int]]] = {}
    for text in given.items("ranges"):
        wanted = given.convert("ranges", text, parse_range, RANGES)
        bounds = (wanted.start or 0, _MOST if wanted.end is None else wanted.end)
        ranges_by_partition.setdefault(TopicPartition(wanted.topic, wanted.partition), []).append(bounds)
    return {tp: joined(ranges) for tp, ranges in ranges_by_partition.items()}


def _columns(given: _Options) -> tuple[str, ...]:
    headers = given.flag("includeHeaders")
    known = {name.lower(): name for name in TYPES}
    names = given.items("columns") or tuple(TYPES)
    for name in names:
        if name.lower() not in known:
            raise UsageError(f"option columns: there is no column {name}", f"use {', '.join(TYPES)}")
    spelled = dict.fromkeys(known[name.lower()] for name in names)
    return tuple(name for name in spelled if headers or name != "headers")
