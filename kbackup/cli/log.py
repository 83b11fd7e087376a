"""`kbackup log`: show the history of an archive."""

from __future__ import annotations

import click

from kbackup.archive.reader import open_archive
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.local_cache import cached_archive_store
from kbackup.cli.common.options import (
    archive_argument,
    archive_option,
    cache_option,
    common_options,
    s3_options,
)


@click.command("log")
@archive_argument
@common_options
@archive_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show the newest N entries.")
@cache_option
@s3_options
@pass_frame
def command(frame: Frame, limit: int | None) -> None:
    """Show the history of an archive: backups, expirations, pins, repairs and copies, with time, user and result."""
    from kbackup.jobs.history.job import history

    store = cached_archive_store(frame)
    rows = history(open_archive(store), limit)
    frame.reporter.table(
        ("catalog", "at", "what", "by", "result"), [(r.catalog, r.at, r.kind, r.by, r.summary) for r in rows]
    )
    frame.reporter.document({"archive": store.url, "history": [row._asdict() for row in rows]})
