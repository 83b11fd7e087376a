"""Options and filters of the data source, translated to segments and windows to read."""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kbackup.archive import layout
from kbackup.archive.identity import check_archive_id
from kbackup.archive.query.selection import Selection
from kbackup.archive.segments.parallel import PART_BYTES
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import EVERYTHING, Window, joined
from kbackup.config import ConfigFiles, Setting, SettingOrigin, load
from kbackup.config.keys import STORES
from kbackup.config.load import TRUST_OPTIONS
from kbackup.config.times import moment_of, now_ms
from kbackup.config.values import has_reference
from kbackup.config.windows import RANGES, parse_range, parse_size
from kbackup.errors import UsageError
from kbackup.schemas.base import RegistryOptions
from kbackup.store import Store, open_store
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


Ranges = tuple[tuple[int, int], ...]
"""Ranges of offsets, each from and to (exclusive), disjoint and rising."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END_OF_OFFSETS = 2**63 - 1


class SegmentColumn(NamedTuple):
    """A column with one value in a whole segment: the type of the value, and the segment's attribute."""

    kind: type
    attribute: str


_OF_SEGMENT = {
    "topic": SegmentColumn(str, "topic"),
    "partition": SegmentColumn(int, "partition"),
    "segment": SegmentColumn(str, "key"),
}


def _is_one_of(value: object, values: frozenset[object]) -> bool:
    return value in values


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": _is_one_of,
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": operator.contains,
}
"""Spark's filters by the names of their classes: each compares the column's value with the filter's."""


@dataclass(frozen=True)
class Condition:
    """A condition on a column that has one value in a whole segment."""

    column: str
    test: str
    value: object
    negated: bool

    def holds_for(self, segment: Segment) -> bool:
        value = getattr(segment, _OF_SEGMENT[self.column].attribute)
        return _TESTS[self.test](value, self.value) != self.negated


@dataclass(frozen=True)
class Pushed:
    """The filters of a query: all `conditions` on segments, and the `window` on their records, must hold."""

    conditions: tuple[Condition, ...] = ()
    window: Window = EVERYTHING

    def wants(self, segment: Segment) -> bool:
        return all(condition.holds_for(segment) for condition in self.conditions)


def push(filters: Sequence[Filter]) -> Pushed:
    """Combine `filters` as far as they can be translated; every record that passes them is in the result."""
    conditions: list[Condition] = []
    window = EVERYTHING
    for one in filters:
        negated = type(one).__name__ == "Not"
        plain: Any = one.child if negated else one  # type: ignore[attr-defined]
        test, value = type(plain).__name__, getattr(plain, "value", None)
        # A filter on a field within a column has a path of names.
        column = plain.attribute[0] if len(plain.attribute) == 1 else ""
        if column in _OF_SEGMENT and _fits(test, value, _OF_SEGMENT[column].kind):
            values = frozenset(value) if isinstance(value, list | tuple) else value
            conditions.append(Condition(column, test, values, negated))
        elif column == "offset" and _fits(test, value, int):
            window = both(window, _of_offsets(test, value, negated))
        elif column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None and not negated:
            window = both(window, _of_time(test, (value - _EPOCH) // timedelta(microseconds=1)))
    return Pushed(tuple(conditions), window)


def window_of(asked: Sequence[Pushed], segment: Segment) -> Window | None:
    """Return the window of a segment that contains the records of all queries; None if no query needs the segment."""
    windows = []
    for pushed in asked:
        if pushed.wants(segment) and pushed.window.may_hold(segment):
            windows.append(pushed.window)
    return either(windows) if windows else None


def either(windows: Sequence[Window]) -> Window:
    """Return a window that contains the records of each given window (at least one), and maybe more."""
    # Where one of the windows has no bound, all of them together have none.
    from_time, to_time = windows[0].from_time, windows[0].to_time
    ranges: list[tuple[int, int]] | None = []
    for window in windows:
        if from_time is not None:
            from_time = None if window.from_time is None else min(from_time, window.from_time)
        if to_time is not None:
            to_time = None if window.to_time is None else max(to_time, window.to_time)
        if window.ranges is None or ranges is None:
            ranges = None
        else:
            ranges += window.ranges
    return Window(from_time=from_time, to_time=to_time, ranges=None if ranges is None else joined(ranges))


def both(a: Window, b: Window) -> Window:
    """Return the window of the records that lie in both windows."""
    low = _known(max, a.from_time, b.from_time)
    high = _known(min, a.to_time, b.to_time)
    if a.ranges is None:
        ranges = b.ranges
    elif b.ranges is None:
        ranges = a.ranges
    else:
        ranges = common(a.ranges, b.ranges)
    if low is not None and high is not None and low > high:
        ranges = ()
    return Window(from_time=low, to_time=high, ranges=ranges)


def _known(choose: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    """Return what `choose` makes of two bounds; the other one if one of them is None."""
    if a is None or b is None:
        return b if a is None else a
    return choose(a, b)


def common(a: Ranges, b: Ranges) -> Ranges:
    """Return the offsets that are in both."""
    overlaps: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low < high:
            overlaps.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(overlaps)


def _fits(test: str, value: object, kind: type) -> bool:
    """Return True when `test` is known and its values have this type: never null, and no boolean for a number."""
    if test == "In":
        return isinstance(value, list | tuple) and all(type(item) is kind for item in value)
    return test in _TESTS and type(value) is kind


def _of_offsets(test: str, value: Any, negated: bool) -> Window:
    """Return the window of a condition on offsets; everything for a condition that is no range of them."""
    found = _offset_ranges(test, value)
    if found is None:
        return EVERYTHING
    ranges = common(joined(found), ((0, _END_OF_OFFSETS),))
    if negated:
        ranges = _gaps_between(ranges)
    return Window(ranges=ranges)


def _offset_ranges(test: str, value: Any) -> list[tuple[int, int]] | None:
    match test:
        case "EqualTo" | "EqualNullSafe":
            return [(value, value + 1)]
        case "In":
            return [(item, item + 1) for item in value]
        case "GreaterThan":
            return [(value + 1, _END_OF_OFFSETS)]
        case "GreaterThanOrEqual":
            return [(value, _END_OF_OFFSETS)]
        case "LessThan":
            return [(0, value)]
        case "LessThanOrEqual":
            return [(0, value + 1)]
    return None


def _gaps_between(ranges: Ranges) -> Ranges:
    """Return all offsets that are in none of `ranges`."""
    gaps: list[tuple[int, int]] = []
    at = 0
    for start, end in ranges:
        gaps.append((at, start))
        at = end
    gaps.append((at, _END_OF_OFFSETS))
    return joined(gaps)


def _of_time(test: str, micros: int) -> Window:
    """Return the window of a condition on a column of whole milliseconds."""
    # Spark compares microseconds: a bound between two milliseconds counts for the next one above or below.
    down, up = micros // 1000, -(-micros // 1000)
    windows: dict[str, tuple[int | None, int | None]] = {
        "EqualTo": (up, down),
        "EqualNullSafe": (up, down),
        "GreaterThan": (down + 1, None),
        "GreaterThanOrEqual": (up, None),
        "LessThan": (None, up - 1),
        "LessThanOrEqual": (None, down),
    }
    low, high = windows.get(test, (None, None))
    return both(Window(from_time=low, to_time=high), EVERYTHING)


# Read the options of `spark.read.format("kbackup")`, and the configuration that reaches the archive.

OPTIONS = {
    "archive": "where the archive is: s3://bucket/prefix or a path; also the argument of load()",
    "topics": "topics, with commas between: names or /regex/",
    "topicPattern": "a regular expression that whole names of topics match",
    "restorePoint": "the restore point: its number, its label, or latest",
    "fromTime": "records from this time on, itself included",
    "toTime": "records up to this time, itself included",
    "ranges": "these offsets alone: topic:partition:from-to, with commas between",
    "decode": "true adds the columns key_json, value_json and decode_error",
    "columns": "the columns to read, with commas between",
    "includeHeaders": "false leaves the column headers out",
    "pushFilters": "true leaves unread what filters exclude, where each query has a filter",
    "partitionBytes": "small segments are read by one task up to this size",
    "startingRestorePoint": "of a stream: the restore point that it begins with, earliest or latest",
    "failOnDataLoss": "of a stream: false goes on where records expired before it had them",
    "config": "a configuration file of kbackup, where the driver allows it",
}
"""Without regard to case, beside `encryption.key` and all keys of stores (`s3.region`) and of `schema_registry`."""

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
"""The columns of `rows.SCHEMA`, as Spark calls their types."""
DECODED = {"key_json": "string", "value_json": "string", "decode_error": "string"}
"""The columns of keys and values that are decoded by their schemas."""
COLUMNS = TYPES | DECODED

_RENAMED = {"backup": "restorePoint", "startingbackup": "startingRestorePoint"}
"""Former names of options, which keep working."""

_SECTIONS = (*STORES, "schema_registry")
_SPELLED = {name.lower(): name for name in (*OPTIONS, "path")} | _RENAMED

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """`ranges` None: all offsets; otherwise partitions that are not in it are left out."""

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
        topics = {partition.topic for partition in self.ranges}
        return Selection(tuple(sorted(topics)))

    def registry(self) -> RegistryOptions:
        """Return the schema registry, of the same places as the store's settings."""
        return load(self.settings, ConfigFiles(config=self.config)).config.schema_registry

    def store(self) -> Store:
        """Open the store with `encryption.key` and the settings of stores from the options, else from the driver's
        environment, else from its file."""
        config = load(self.settings, ConfigFiles(config=self.config)).config
        url = self.archive or config.archive or ""
        key = config.encryption.key or ""
        store = open_store(url, config.stores, key, archive_id=config.archive_id, key_class=layout.key_class)
        check_archive_id(store, config.archive_id)
        return store


class _Options(NamedTuple):
    """The options of a query: those of `OPTIONS` by their names, and `settings` by the path of their key."""

    named: dict[str, str]
    settings: tuple[Setting, ...]

    def __call__(self, name: str, default: str = "") -> str:
        return self.named.get(name, default).strip()

    def items(self, name: str) -> tuple[str, ...]:
        return tuple(item.strip() for item in self(name).split(",") if item.strip())

    def convert(self, name: str, text: str, to: Callable[[str], T], expected: str) -> T:
        """Convert an option by `to`; raise `UsageError` if `to` raises `ValueError`."""
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
    size = given("partitionBytes", str(PART_BYTES))
    partition_bytes = given.convert("partitionBytes", size, parse_size, "a size such as 64MiB")
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
        partition_bytes=partition_bytes,
        starting=given("startingRestorePoint", "earliest"),
        fail_on_data_loss=given.flag("failOnDataLoss"),
    )


def _sorted_out(options: Mapping[str, str]) -> _Options:
    named: dict[str, str] = {}
    settings: list[Setting] = []
    for key, value in options.items():
        _check_allowed(key, value)
        lower = key.lower()
        if name := _SPELLED.get(lower):
            named[name] = value
        elif lower == "encryption.key" or lower.partition(".")[0] in _SECTIONS:
            origin = SettingOrigin("option", key)
            settings.append(Setting(lower, value, origin))
        else:
            raise UsageError(f"there is no option {key}", _hint_for_unknown(lower))
    return _Options(named, tuple(settings))


def _hint_for_unknown(option: str) -> str:
    near = difflib.get_close_matches(option, [*_SPELLED, "encryption.key"], n=1)
    if near:
        return f"did you mean {_SPELLED.get(near[0], near[0])}?"
    sections = " and ".join(f"{name}.…" for name in _SECTIONS)
    return f"there are {', '.join(OPTIONS)}, encryption.key, {sections}"


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
    now = now_ms()
    start = moment_of("option fromTime:", given("fromTime") or None, now=now, up=True)
    end = moment_of("option toTime:", given("toTime") or None, now=now)
    if start is not None and end is not None and start > end:
        raise UsageError(
            f"option fromTime {given('fromTime')} is later than toTime {given('toTime')}",
            "change their order: both bounds are included, and fromTime is the earlier one",
        )
    return Window(from_time=start, to_time=end)


def _ranges(given: _Options) -> Mapping[TopicPartition, Ranges] | None:
    if not given("ranges"):
        return None
    ranges: dict[TopicPartition, list[tuple[int, int]]] = {}
    for text in given.items("ranges"):
        parsed = given.convert("ranges", text, parse_range, RANGES)
        end = _END_OF_OFFSETS if parsed.end is None else parsed.end
        own = ranges.setdefault(TopicPartition(parsed.topic, parsed.partition), [])
        own.append((parsed.start or 0, end))
    return {partition: joined(own) for partition, own in ranges.items()}


def _columns(given: _Options) -> tuple[str, ...]:
    headers = given.flag("includeHeaders")
    known = {name.lower(): name for name in COLUMNS}
    asked = given.items("columns")
    if not asked:
        asked = tuple(COLUMNS if given.flag("decode", "false") else TYPES)
    names: dict[str, None] = {}
    for name in asked:
        if name.lower() not in known:
            raise UsageError(f"option columns: there is no column {name}", f"use {', '.join(COLUMNS)}")
        names[known[name.lower()]] = None
    return tuple(name for name in names if headers or name != "headers")
