"""`kbackup diff`: what is different between two restore points, or a restore point and a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.key_options import client_file_option, key_option, key_options
from kbackup.cli.common.options import archive_option, common_options, s3_options
from kbackup.cli.common.output import Cell, Reporter
from kbackup.cli.common.session import archive_store
from kbackup.errors import EXIT_LOSS, EXIT_OK

if TYPE_CHECKING:
    from kbackup.jobs.diff.types import Diff, Value, View

LIVE = ("source", "target")


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@common_options
@archive_option
@client_file_option("source")
@client_file_option("target")
@key_option(
    "backup.topics", "-t", "--topic", "--topics", help="Topics to compare: names or /regex/. Empty: all."
)
@key_option("backup.exclude_topics", "--exclude-topic", "--exclude-topics")
@key_option(
    "backup.groups", "-g", "--group", "--groups", help="Groups to compare: names or /regex/. Empty: all."
)
@key_option("backup.exclude_groups", "--exclude-group", "--exclude-groups")
@key_options("backup.isolation_level")
@click.option("--exit-code", is_flag=True, help="End with exit code 3 if there are differences.")
@s3_options
@pass_frame
def command(frame: Frame, a: str, b: str, exit_code: bool) -> int:
    """Show how B differs from A: topics, offsets, groups and settings of the cluster.

    A and B are restore points (number, label or latest) or clusters: source or target of the configuration. Offsets of
    a restore point are the archived ones. Offsets of a cluster are those up to which a backup would read.
    """
    from kbackup.jobs.diff.job import diff
    from kbackup.jobs.diff.views import check_selections

    topics, groups = _selections(frame)
    take = _views(frame, topics, groups)
    views = [take(a), take(b)]
    check_selections(views, topics, groups)
    found = diff(*views)
    _show(found, frame.reporter)
    frame.reporter.document(found)
    return EXIT_LOSS if exit_code and not found.same else EXIT_OK


def _selections(frame: Frame) -> tuple[Selection, Selection]:
    """The topics and the groups to compare."""
    options = frame.config.backup
    return (
        Selection.of(options.topics, options.exclude_topics),
        Selection.of(options.groups, options.exclude_groups),
    )


def _views(frame: Frame, topics: Selection, groups: Selection) -> Callable[[str], View]:
    """What makes a view of a name."""
    from kbackup.jobs.diff.views import live_view, point_view

    @functools.cache
    def archive() -> Archive:
        return open_archive(archive_store(frame))

    def take(name: str) -> View:
        if name in LIVE:
            properties = frame.config.source if name == "source" else frame.config.target
            return live_view(properties, name, topics, groups, frame.config.backup.isolation_level)
        return point_view(archive(), archive().restore_point(name), topics, groups)

    return take


def _show(found: Diff, reporter: Reporter) -> None:
    reporter.note(f"from {found.a} to {found.b}")
    _table(
        reporter,
        ("topic", "change", "partitions", "replication"),
        [(t.topic, t.change, _change(*t.partitions), _change(*t.replication)) for t in found.topics],
    )
    configs = [value for topic in found.topics for value in topic.configs]
    _table(reporter, ("topic", "config", "change", "before", "after"), map(_value, configs))
    _table(
        reporter,
        ("topic", "partition", "start", "end", "added"),
        [(o.topic, o.partition, _change(*o.start), _change(*o.end), o.added) for o in found.offsets],
    )
    _table(
        reporter,
        ("group", "change", "topic", "partition", "before", "after"),
        [(g.group, g.change, m.topic, m.partition, m.before, m.after) for g in found.groups for m in g.moved],
    )
    _table(
        reporter,
        ("acl", "principal", "host", "permission", "operation", "resource", "name", "pattern"),
        [
            (
                *(d.change, d.acl.principal, d.acl.host, d.acl.permission, d.acl.operation),
                *(d.acl.resource, d.acl.name, d.acl.pattern),
            )
            for d in found.acls
        ],
    )
    _table(reporter, ("user", "mechanism", "change", "before", "after"), map(_value, found.users))
    _table(reporter, ("broker", "config", "change", "before", "after"), map(_value, found.broker_configs))
    _table(reporter, ("group", "config", "change", "before", "after"), map(_value, found.group_configs))
    _table(reporter, ("entity", "quota", "change", "before", "after"), map(_value, found.quotas))
    _table(reporter, ("owner", "token", "change", "before", "after"), map(_value, found.tokens))
    _table(
        reporter, ("client metrics", "config", "change", "before", "after"), map(_value, found.client_metrics)
    )
    _table(reporter, ("of", "feature", "change", "before", "after"), map(_value, found.features))
    for what, why in found.not_compared.items():
        reporter.note(f"not compared: {what} ({why})")
    reporter.line("there are no differences" if found.same else _sum(found))


def _table(reporter: Reporter, columns: tuple[str, ...], rows: Iterable[tuple[Cell, ...]]) -> None:
    """Followed by an empty line; nothing where there are no rows."""
    found = list(rows)
    if found:
        reporter.table(columns, found)
        reporter.line()


def _value(value: Value) -> tuple[Cell, ...]:
    return value.owner, value.name, value.change, value.before, value.after


def _change(before: int | None, after: int | None) -> str:
    if before == after:
        return f"{after:,}" if after is not None else "-"
    return " -> ".join("-" if number is None else f"{number:,}" for number in (before, after))


def _sum(found: Diff) -> str:
    added = sum(max(0, o.added) for o in found.offsets)
    counts = (
        (len(found.topics), "topics"),
        (len(found.offsets), f"partitions ({added:,} new offsets)"),
        (len(found.groups), "groups"),
        (len(found.acls), "ACLs"),
        (len(found.users), "users"),
        (len(found.broker_configs) + len(found.group_configs), "settings of brokers and groups"),
        (len(found.quotas), "quotas"),
        (len(found.tokens), "tokens"),
        (len(found.client_metrics), "settings of client metrics"),
        (len(found.features), "features"),
    )
    return "different: " + ", ".join(f"{count:,} {what}" for count, what in counts if count)
