"""`kbackup status`: show in one line whether an archive is well."""

from __future__ import annotations

import click

from kbackup.archive.reader import open_archive
from kbackup.cli.common import options
from kbackup.cli.common.command_context import CommandContext, FlagValues, pass_command_context
from kbackup.cli.common.command_lines import store_options
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.session import cached_archive_store, state_store
from kbackup.errors import EXIT_LOSS, EXIT_OK, CorruptError, KbackupError
from kbackup.jobs.status.job import archive_status
from kbackup.jobs.status.report import LEVELS, ArchiveStatus, count_status, summary
from kbackup.util.text import printable

UNKNOWN = 3
"""A monitoring plugin's exit code if the archive can't be judged; ok, warning and critical are 0, 1 and 2."""


@click.command("status", cls=SectionedCommand, epilog="Example: kbackup status --max-age 2h")
@options.archive_argument
@options.key_option("backup.max_age", "--max-age")
@click.option("--nagios", is_flag=True, help="Print and exit as a monitoring plugin: 0, 1, 2 or 3.")
@options.key_option("restore.state", help="Address of the drills' reports. Unset: the archive.")
@options.cache_option
@options.bucket_options
def command(nagios: bool) -> int:
    """Show in one line whether an archive is well, then each finding with a command that shows or mends it.

    Critical: the newest restore point is older than backup.max_age, a file that restore points need is damaged, or the
    last drill that compared records found a difference. Warning: losses of the last 7 days, restore points that lack
    damaged segments, damaged reports, a drill that could not run, no drill within backup.max_drill_age, a killed
    writer, an old restore point while --follow runs, schemas or deletions that may be missing, a transaction that stays
    open. An archive that was never verified or drilled is judged by the rest.

    Ends with exit code 0 without findings, 13 for critical damage, else 3. Reads a few small objects and no
    cluster.
    """
    if not nagios:
        return _status()
    try:
        return _nagios()
    except KbackupError as error:
        if click.get_current_context().ensure_object(FlagValues).json:
            raise
        click.echo(f"KBACKUP UNKNOWN - {_one_line(str(error))}")
        return UNKNOWN


@pass_command_context
def _status(context: CommandContext) -> int:
    status = _read(context)
    context.reporter.level(status.level, f": {status.archive}: {summary(status)}")
    for finding in status.findings:
        context.reporter.level(finding.level, f": {finding.message}; run: {finding.command}")
    if status.findings:
        # The last line is the summary of a notification, which is to name all findings.
        context.reporter.summary = "; ".join(finding.message for finding in status.findings)
    context.reporter.document(status)
    if any(f.subject == "damage" and f.level == "critical" for f in status.findings):
        return CorruptError.exit_code
    return EXIT_LOSS if status.findings else EXIT_OK


@pass_command_context
def _nagios(context: CommandContext) -> int:
    status = _read(context)
    findings = [f"{finding.message} (run: {finding.command})" for finding in status.findings]
    text = "; ".join(findings) or summary(status)
    figures = [f"losses={status.losses}", f"damaged_points={status.damaged_points}"]
    if status.newest is not None:
        figures.insert(0, f"age={status.newest.age_seconds:.0f}s;;{status.max_age_seconds:.0f};0")
    figures.append(f"growth={status.growth.stored_bytes}B")
    context.reporter.line(f"KBACKUP {status.level.upper()} - {_one_line(text)} | {' '.join(figures)}")
    context.reporter.document(status)
    return LEVELS.index(status.level)


def _one_line(text: str) -> str:
    """Return text of others as a plugin may print it: `|` begins its figures, and a monitor's page shows the rest."""
    in_one_line = " ".join(text.split())
    return printable(in_one_line).replace("|", "/")


def _read(context: CommandContext) -> ArchiveStatus:
    store = cached_archive_store(context)
    status = archive_status(
        open_archive(store),
        context.config.backup,
        reports=state_store(context, store),
        options=store_options(),
        servers=context.config.source.get("bootstrap.servers", ""),
    )
    count_status(status)
    return status
