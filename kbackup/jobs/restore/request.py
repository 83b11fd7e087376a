"""The request of a restore: the keys of `[restore]`, checked once and in the types that its phases work with.

The command, the library, the page and a drill all make a `RestoreRequest`, and `--guide` runs the command. Times,
offsets, names and expressions are parsed here, by the forms of `kbackup.config.windows`. No phase parses them again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from kbackup.archive.query.selection import Selection
from kbackup.archive.segments.window import Window
from kbackup.config.models import Restore
from kbackup.config.times import moment_of, now_ms
from kbackup.config.windows import Range, parse_range, parse_rule
from kbackup.errors import UsageError
from kbackup.jobs.decoding import where_of
from kbackup.jobs.schemas.records import RecordOptions
from kbackup.jobs.transform import Transform, transform_of
from kbackup.util.linear_regex import LinearRegex
from kbackup.util.times import now


@dataclass(frozen=True)
class RenameRule:
    """A rule of `--map-regex`: as it was written, and its two sides."""

    text: str
    pattern: LinearRegex
    replacement: str

    @classmethod
    def of(cls, text: str) -> RenameRule:
        pattern, replacement = parse_rule(text)
        return cls(text, pattern, replacement)

    def rename(self, topic: str) -> str:
        """Return the new name of a topic that the pattern matches. `UsageError` for a replacement that names a group
        which the pattern lacks."""
        try:
            return self.pattern.replace_first(self.replacement, topic)
        except ValueError as error:
            raise UsageError(
                f"--map-regex {self.text!r}: {error}", "name a group of the expression, as in 'a(.*)=b\\1'"
            ) from error


@dataclass(frozen=True)
class TopicNames:
    """The names that topics get on the target: the name in `exact`, or else the name by the first of the `rules` whose
    pattern matches somewhere in the name. Other topics keep their names."""

    exact: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[RenameRule, ...] = ()

    @classmethod
    def of(cls, exact: Mapping[str, str], rules: Sequence[str]) -> TopicNames:
        return cls(exact, tuple(RenameRule.of(rule) for rule in rules))

    def target_of(self, topic: str) -> str:
        if topic in self.exact:
            return self.exact[topic]
        for rule in self.rules:
            if rule.pattern.search(topic):
                return rule.rename(topic)
        return topic


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """A restore as it is asked for.

    `given` are the keys as they were written: a plan records them, so that a resumed restore can be compared with
    them, and messages quote them. `restore_id` is a new one unless an id was given (`names_restore`), which may be that
    of a restore that was begun. `window` has the bounds in time, in ms since the epoch and counted from the moment of
    the request, and the expression. `groups` and `record_schemas` are None if they are to be left alone.
    """

    given: Restore
    restore_id: str
    restore_point: int | str
    window: Window
    ranges: tuple[Range, ...]
    skips: tuple[Range, ...]
    topics: Selection
    names: TopicNames
    groups: Selection | None
    group_names: Mapping[str, str]
    record_schemas: RecordOptions | None
    settings: tuple[Literal["acls", "configs", "quotas", "users"], ...]
    topic_config: Mapping[str, str]
    replication_factor: int | None
    into_existing: bool
    strict: bool
    transactions: bool
    transaction_bytes: int
    same_offsets: bool
    fill: Literal["markers", "aborted", "tombstones"] | None
    may_mark: bool
    """Whether the gaps of logs may be filled by markers of transactions."""
    transform: Transform | None = None

    @classmethod
    def of(cls, given: Restore) -> RestoreRequest:
        """Return the request of some keys. `UsageError` for an expression that can't be used. The configuration has
        checked the forms of the other keys as it was loaded, and names file and key where one is wrong."""
        if given.where:
            where_of(given.where)
        start, end = _bounds(given)
        window = Window(from_time=start, to_time=end, where=given.where or None)
        ranges = tuple(parse_range(text) for text in given.range)
        skips = tuple(parse_range(text) for text in given.skip)
        groups = None if given.no_groups else Selection.of(given.groups, given.exclude_groups)
        return cls(
            given=given,
            restore_id=given.restore_id or _new_id(),
            restore_point=given.restore_point,
            window=window,
            ranges=ranges,
            skips=skips,
            topics=Selection.of(given.topics, given.exclude_topics),
            names=TopicNames.of(given.map, given.map_regex),
            groups=groups,
            group_names=given.map_group,
            record_schemas=_record_schemas(given),
            settings=given.settings,
            topic_config=given.topic_config,
            replication_factor=given.replication_factor,
            into_existing=given.into_existing,
            strict=given.strict,
            # Logs with the same offsets have no room for the markers of our transactions.
            transactions=given.transactions and not given.same_offsets,
            transaction_bytes=given.transaction_bytes,
            same_offsets=given.same_offsets,
            fill=given.fill,
            may_mark=given.transactions,
            transform=transform_of(given.transform),
        )

    @property
    def names_restore(self) -> bool:
        """Return whether the request names a restore, which may have begun."""
        return self.given.restore_id is not None

    def check_selection(self) -> None:
        """Raise `UsageError` for topics, offsets and times that exclude each other.

        Only a restore that begins is checked. One that is resumed has its content in its plan: it may leave topics of
        its ranges out by then, and '2h ago' is later than when it began.
        """
        if self.same_offsets and self.into_existing:
            raise UsageError(
                "--same-offsets takes new topics: in a log that holds records, the offsets are taken",
                "leave --into-existing out, and give topics that exist another name with --map",
            )
        if self.fill is not None and not self.same_offsets:
            raise UsageError("--fill is for --same-offsets alone", "add --same-offsets, or leave --fill out")
        if self.ranges and (self.topics.include or self.topics.exclude):
            raise UsageError("--range names its topics itself", "leave --topic and --exclude-topic out")
        start, end = self.window.from_time, self.window.to_time
        if start is not None and end is not None and start > end:
            raise UsageError(
                f"--from-time {self.given.from_time} is later than --to-time {self.given.to_time}",
                "give the earlier time to --from-time; both times are included",
            )


def _bounds(given: Restore) -> tuple[int | None, int | None]:
    """Return `from_time` and `to_time` in ms since the epoch, None without them. `UsageError` for a time of today that
    is still to come."""
    now = now_ms()
    start = moment_of("--from-time", given.from_time or None, now=now, up=True)
    end = moment_of("--to-time", given.to_time or None, now=now)
    return start, end


def _new_id() -> str:
    """Return a new id of a restore, with the day on which it begins."""
    return f"{now()[:10]}-{uuid.uuid4().hex[:8]}"


def _record_schemas(given: Restore) -> RecordOptions | None:
    """Return the options for the schemas of records; None if the schemas are to be left alone."""
    if given.schemas == "none":
        return None
    return RecordOptions(
        asked=given.schemas,
        prefix=given.subject_prefix,
        by_id=given.schemas_topics,
        untouched=given.no_schemas_topics,
        unmapped=given.unmapped,
    )


_FREE = ("restore_id", "state", "transactions", "transaction_bytes", "unmapped", "transform")
"""Keys of `[restore]` that do not decide what is restored. A plan has a transform by its digest: the file may be
elsewhere when the restore is resumed."""
_ORDERED = ("map_regex",)  # the first rule that matches counts


def given_options(given: Restore) -> dict[str, Any]:
    """Return the keys of `[restore]` that decide what is restored, as they were given. Lists whose order means nothing
    are sorted."""
    keys: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(given))
    options: dict[str, Any] = {}
    for name, value in keys.items():
        if name in _FREE:
            continue
        is_free_list = isinstance(value, list) and name not in _ORDERED
        options[name] = sorted(value) if is_free_list else value
    return options
