"""`kbackup diff`: show differences between two restore points, or a restore point and a cluster."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.options import archive_command, client_file_option, key_option, name_options
from kbackup.cli.common.output import Cell, Column, Reporter, columns
from kbackup.cli.common.session import archive_store
from kbackup.errors import EXIT_LOSS, EXIT_OK

if TYPE_CHECKING:
    from kbackup.jobs.diff import Diff, DiffView, Value


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
    _show(differences, context.reporter)
    context.reporter.document(differences)
    return EXIT_LOSS if exit_code and not differences.same else EXIT_OK


_VALUES = (
    ("users", "user", "mechanism"),
    ("broker_configs", "broker", "config"),
    ("group_configs", "group", "config"),
    ("quotas", "entity", "quota"),
    ("tokens", "owner", "token"),
    ("client_metrics", "client metrics", "config"),
    ("features", "of", "feature"),
    ("schemas", "subject", "name"),
)
"""Parts of the differences that consist of values, and the names of the columns of owner and name."""


def _show(diff: Diff, reporter: Reporter) -> None:
    reporter.note(f"from {diff.a} to {diff.b}")
    _table(
        reporter,
        columns("topic, change, partitions 4, replication 3"),
        [(t.topic, t.change, _change(*t.partitions), _change(*t.replication)) for t in diff.topics],
    )
    configs = [value for topic in diff.topics for value in topic.configs]
    _table(reporter, columns("topic, config, change 1, before, after"), map(_value, configs))
    _table(
        reporter,
        columns("topic, partition, start 3, end 4, added"),
        [(o.topic, o.partition, _change(*o.start), _change(*o.end), o.added) for o in diff.offsets],
    )
    _table(
        reporter,
        columns("group, change 1, topic, partition, before 4, after"),
        [(g.group, g.change, m.topic, m.partition, m.before, m.after) for g in diff.groups for m in g.moved],
    )
    _table(
        reporter,
        columns("acl, principal, host 1, permission 3, operation, resource 4, name, pattern 2"),
        [
            (d.change, a.principal, a.host, a.permission, a.operation, a.resource, a.name, a.pattern)
            for d, a in ((d, d.acl) for d in diff.acls)
        ],
    )
    for part, owner, name in _VALUES:
        _table(reporter, columns(f"{owner}, {name}, change 1, before, after"), map(_value, getattr(diff, part)))
    reporter.note(*(f"not compared: {subject} ({why})" for subject, why in diff.not_compared.items()))
    added = sum(max(0, o.added) for o in diff.offsets)
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
    different = "different: " + ", ".join(f"{count:,} {label}" for count, label in counts if count)
    reporter.line("there are no differences" if diff.same else different)


def _table(reporter: Reporter, heads: list[Column], rows: Iterable[tuple[Cell, ...]]) -> None:
    """Print a table and an empty line; print nothing without rows."""
    shown = list(rows)
    if shown:
        reporter.table(heads, shown)
        reporter.line()


def _value(value: Value) -> tuple[Cell, ...]:
    return value.owner, value.name, value.change, value.before, value.after


def _change(before: int | None, after: int | None) -> str:
    if before == after:
        return f"{after:,}" if after is not None else "-"
    return " -> ".join("-" if number is None else f"{number:,}" for number in (before, after))
