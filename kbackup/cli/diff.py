"""`kbackup diff`: show differences between two restore points, or a restore point and a cluster."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.options import archive_command, client_file_option, key_option, name_options
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import archive_store
from kbackup.cli.common.tables import Column, cell_text
from kbackup.errors import EXIT_LOSS, EXIT_OK

if TYPE_CHECKING:
    from kbackup.jobs.diff import AclDiff, Diff, DiffView, GroupDiff, Move, OffsetDiff, TopicDiff, Value

T = TypeVar("T")


@archive_command(
    "diff",
    click.argument("a", metavar="A"),
    click.argument("b", metavar="B"),
    client_file_option("source"),
    client_file_option("target"),
    name_options("backup.topics", "backup.groups"),
    key_option("backup.isolation_level"),
    click.option("--exit-code", is_flag=True, help="End with exit code 3 if there are differences."),
    example="kbackup diff latest source",
)
def command(context: CommandContext, a: str, b: str, exit_code: bool) -> int:
    """Show how B differs from A: topics, offsets, groups and settings of the cluster.

    A and B are restore points (number, label or latest) or the clusters source or target. Offsets of a cluster are
    those up to which a backup would read.
    """
    from kbackup.jobs.diff import check_selections, diff, live_view, point_view

    config = context.config
    topics = Selection.of(config.backup.topics, config.backup.exclude_topics)
    groups = Selection.of(config.backup.groups, config.backup.exclude_groups)

    # Cached, because both sides may be restore points; not opened at once, because both may be clusters.
    @functools.cache
    def archive() -> Archive:
        return open_archive(archive_store(context))

    def read_view(name: str) -> DiffView:
        """Read the view of a restore point or a cluster."""
        if name in ("source", "target"):
            properties = config.source if name == "source" else config.target
            return live_view(properties, name, topics, groups, config.backup.isolation_level)
        return point_view(archive(), archive().restore_point(name), topics, groups)

    views = [read_view(a), read_view(b)]
    check_selections(views, topics, groups)
    differences = diff(*views)
    show_difference(differences, context.reporter)
    context.reporter.document(differences)
    return EXIT_LOSS if exit_code and not differences.same else EXIT_OK


def _change(values: tuple[int | None, int | None]) -> str:
    """Return a number that changed as "before -> after", or the number alone if it is the same."""
    before, after = values
    if before == after:
        return cell_text(after)
    return f"{cell_text(before)} -> {cell_text(after)}"


_TOPICS: Sequence[Column[TopicDiff]] = (
    Column("topic", "topic"),
    Column("change", "change"),
    Column("partitions", "partitions", _change, importance=4),
    Column("replication", "replication", _change, importance=3),
)
_OFFSETS: Sequence[Column[OffsetDiff]] = (
    Column("topic", "topic"),
    Column("partition", "partition"),
    Column("start", "start", _change, importance=3),
    Column("end", "end", _change, importance=4),
    Column("added", "added"),
)


class _MoveOfGroup(NamedTuple):
    """A committed offset that is another one now, with the group whose offset it is."""

    group: GroupDiff
    move: Move


_MOVES: Sequence[Column[_MoveOfGroup]] = (
    Column("group", "group.group"),
    Column("change", "group.change", importance=1),
    Column("topic", "move.topic"),
    Column("partition", "move.partition"),
    Column("before", "move.before", importance=4),
    Column("after", "move.after"),
)
_ACLS: Sequence[Column[AclDiff]] = (
    Column("acl", "change"),
    Column("principal", "acl.principal"),
    Column("host", "acl.host", importance=1),
    Column("permission", "acl.permission", importance=3),
    Column("operation", "acl.operation"),
    Column("resource", "acl.resource", importance=4),
    Column("name", "acl.name"),
    Column("pattern", "acl.pattern", importance=2),
)


def value_columns(owner: str, name: str) -> Sequence[Column[Value]]:
    """Return the columns of a table of values, where the first two say whose value it is and what its name is."""
    return (
        Column(owner, "owner"),
        Column(name, "name"),
        Column("change", "change", importance=1),
        Column("before", "before"),
        Column("after", "after"),
    )


def show_difference(diff: Diff, reporter: Reporter) -> None:
    reporter.note(f"from {diff.a} to {diff.b}")
    configs: list[Value] = []
    for topic in diff.topics:
        configs += topic.configs
    moves = []
    for group in diff.groups:
        for move in group.moved:
            moves.append(_MoveOfGroup(group, move))
    _table(reporter, _TOPICS, diff.topics)
    _table(reporter, value_columns("topic", "config"), configs)
    _table(reporter, _OFFSETS, diff.offsets)
    _table(reporter, _MOVES, moves)
    _table(reporter, _ACLS, diff.acls)
    _table(reporter, value_columns("user", "mechanism"), diff.users)
    _table(reporter, value_columns("broker", "config"), diff.broker_configs)
    _table(reporter, value_columns("group", "config"), diff.group_configs)
    _table(reporter, value_columns("entity", "quota"), diff.quotas)
    _table(reporter, value_columns("owner", "token"), diff.tokens)
    _table(reporter, value_columns("client metrics", "config"), diff.client_metrics)
    _table(reporter, value_columns("of", "feature"), diff.features)
    _table(reporter, value_columns("subject", "name"), diff.schemas)
    for subject, why in diff.not_compared.items():
        reporter.note(f"not compared: {subject} ({why})")
    reporter.line(_result(diff))


def _result(diff: Diff) -> str:
    """Return in one line how much differs."""
    if diff.same:
        return "there are no differences"
    # A log that was cut has no new offsets, and takes none from the others.
    added = sum(max(0, moved.added) for moved in diff.offsets)
    counts = (
        (len(diff.topics), "topics"),
        (len(diff.offsets), f"partitions ({added:,} new offsets)"),
        (len(diff.groups), "groups"),
        (len(diff.acls), "ACLs"),
        (len(diff.users), "users"),
        (len(diff.broker_configs) + len(diff.group_configs), "settings of brokers and groups"),
        (len(diff.quotas), "quotas"),
        (len(diff.tokens), "tokens"),
        (len(diff.client_metrics), "settings of client metrics"),
        (len(diff.features), "features"),
        (len(diff.schemas), "versions and settings of schemas"),
    )
    different = [f"{count:,} {label}" for count, label in counts if count]
    return f"different: {', '.join(different)}"


def _table(reporter: Reporter, columns: Sequence[Column[T]], rows: Sequence[T]) -> None:
    """Print a table and an empty line; print nothing without rows."""
    if rows:
        reporter.table(columns, rows)
        reporter.line()
