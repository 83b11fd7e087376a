"""`kbackup diff`: show differences between two restore points, or a restore point and a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import (
    archive_option,
    client_file_option,
    common_options,
    key_option,
    key_options,
    s3_options,
)
from kbackup.cli.common.output import Cell, Reporter
from kbackup.cli.common.session import archive_store
from kbackup.errors import EXIT_LOSS, EXIT_OK

if TYPE_CHECKING:
    from kbackup.jobs.diff import Diff, DiffView, Value

LIVE = ("source", "target")


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@common_options
@archive_option
@client_file_option("source")
@client_file_option("target")
@key_option("backup.topics", "-t", "--topic", "--topics")
@key_option("backup.exclude_topics", "--exclude-topic", "--exclude-topics")
@key_option("backup.groups", "-g", "--group", "--groups")
@key_option("backup.exclude_groups", "--exclude-group", "--exclude-groups")
@key_options("backup.isolation_level")
@click.option("--exit-code", is_flag=True, help="End with exit code 3 if there are differences.")
@s3_options
@pass_frame
def command(frame: Frame, a: str, b: str, exit_code: bool) -> int:
    """Show how B differs from A: topics, offsets, groups and settings of the cluster.

    A and B are restore points (number, label or latest) or the clusters source or target. Offsets of a cluster are
    those up to which a backup would read.
    """
    from kbackup.jobs.diff import check_selections, diff

    topics, groups = _selections(frame)
    read_view = _view_reader(frame, topics, groups)
    views = [read_view(a), read_view(b)]
    check_selections(views, topics, groups)
    differences = diff(*views)
    _show(differences, frame.reporter)
    frame.reporter.document(differences)
    return EXIT_LOSS if exit_code and not differences.same else EXIT_OK


def _selections(frame: Frame) -> tuple[Selection, Selection]:
    """Return the selections of topics and groups to compare."""
    options = frame.config.backup
    return (Selection.of(options.topics, options.exclude_topics), Selection.of(options.groups, options.exclude_groups))


def _view_reader(frame: Frame, topics: Selection, groups: Selection) -> Callable[[str], DiffView]:
    """Return a function that reads the view of a restore point or a cluster."""
    from kbackup.jobs.diff import live_view, point_view

    @functools.cache
    def archive() -> Archive:
        return open_archive(archive_store(frame))

    def read_view(name: str) -> DiffView:
        if name in LIVE:
            properties = frame.config.source if name == "source" else frame.config.target
            return live_view(properties, name, topics, groups, frame.config.backup.isolation_level)
        return point_view(archive(), archive().restore_point(name), topics, groups)

    return read_view


_VALUES = (
    ("users", "user", "mechanism"),
    ("broker_configs", "broker", "config"),
    ("group_configs", "group", "config"),
    ("quotas", "entity", "quota"),
    ("tokens", "owner", "token"),
    ("client_metrics", "client metrics", "config"),
    ("features", "of", "feature"),
)
"""Parts of the differences that consist of values, and the names of the columns of owner and name."""


def _show(diff: Diff, reporter: Reporter) -> None:
    reporter.note(f"from {diff.a} to {diff.b}")
    _table(
        reporter,
        ("topic", "change", "partitions", "replication"),
        [(t.topic, t.change, _change(*t.partitions), _change(*t.replication)) for t in diff.topics],
    )
    configs = [value for topic in diff.topics for value in topic.configs]
    _table(reporter, ("topic", "config", "change", "before", "after"), map(_value, configs))
    _table(
        reporter,
        ("topic", "partition", "start", "end", "added"),
        [(o.topic, o.partition, _change(*o.start), _change(*o.end), o.added) for o in diff.offsets],
    )
    _table(
        reporter,
        ("group", "change", "topic", "partition", "before", "after"),
        [(g.group, g.change, m.topic, m.partition, m.before, m.after) for g in diff.groups for m in g.moved],
    )
    _table(
        reporter,
        ("acl", "principal", "host", "permission", "operation", "resource", "name", "pattern"),
        [
            (
                *(d.change, d.acl.principal, d.acl.host, d.acl.permission, d.acl.operation),
                *(d.acl.resource, d.acl.name, d.acl.pattern),
            )
            for d in diff.acls
        ],
    )
    for part, owner, name in _VALUES:
        _table(reporter, (owner, name, "change", "before", "after"), map(_value, getattr(diff, part)))
    for subject, why in diff.not_compared.items():
        reporter.note(f"not compared: {subject} ({why})")
    reporter.line("there are no differences" if diff.same else _sum(diff))


def _table(reporter: Reporter, columns: tuple[str, ...], rows: Iterable[tuple[Cell, ...]]) -> None:
    """Print a table and an empty line; print nothing without rows."""
    shown = list(rows)
    if shown:
        reporter.table(columns, shown)
        reporter.line()


def _value(value: Value) -> tuple[Cell, ...]:
    return value.owner, value.name, value.change, value.before, value.after


def _change(before: int | None, after: int | None) -> str:
    if before == after:
        return f"{after:,}" if after is not None else "-"
    return " -> ".join("-" if number is None else f"{number:,}" for number in (before, after))


def _sum(diff: Diff) -> str:
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
    )
    return "different: " + ", ".join(f"{count:,} {label}" for count, label in counts if count)
