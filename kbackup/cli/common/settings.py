"""Show the settings that a restore changes, and undo these changes."""

from __future__ import annotations

from collections.abc import Iterable

from kbackup.archive import layout
from kbackup.cli.common.frame import Frame
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import archive_store
from kbackup.errors import EXIT_LOSS, EXIT_OK, UsageError
from kbackup.jobs.settings.changes import Changes, ConfigChange, entity_words
from kbackup.jobs.settings.plan import SettingsReport
from kbackup.metadata.entities import Acl
from kbackup.store import open_store


def show_settings(planned: SettingsReport, reporter: Reporter) -> None:
    """Print the differences to the target, and what is not carried."""
    show_changes(planned.changes, reporter)
    for entry in planned.not_carried:
        reporter.note(f"not carried: {entry.what} ({entry.why})")
    for warning in (*planned.warnings, *planned.missing):
        reporter.warning(warning)


def show_changes(changes: Changes, reporter: Reporter) -> None:
    _acls("new acl for", changes.acls, reporter)
    _acls("deleted acl for", changes.deleted_acls, reporter)
    if changes.configs:
        reporter.table(
            ("config", "of", "now", "becomes"),
            [(c.name, _owner(c), c.before, c.after) for c in changes.configs],
        )
        reporter.line()
    if changes.quotas:
        reporter.table(
            ("quota", "of", "now", "becomes"),
            [(c.name, entity_words(c.entity), c.before, c.after) for c in changes.quotas],
        )
        reporter.line()


def _acls(title: str, acls: Iterable[Acl], reporter: Reporter) -> None:
    rows = [(a.principal, a.host, a.permission, a.operation, a.resource, a.name, a.pattern) for a in acls]
    if rows:
        reporter.table((title, "host", "permission", "operation", "resource", "name", "pattern"), rows)
        reporter.line()


def _owner(change: ConfigChange) -> str:
    return "all brokers" if change.of_all else f"{change.kind} {change.owner}"


def undo(frame: Frame, dry_run: bool) -> int:
    """Put back the ACLs, configs and quotas that the target had before a restore."""
    from kbackup.jobs.settings.undo import undo_settings
    from kbackup.kafka.admin.cluster import Cluster

    config, reporter = frame.config, frame.reporter
    restore_id = config.restore.restore_id
    if restore_id is None:
        raise UsageError("no restore is named", "give --restore-id")
    address = config.restore.state
    state = (
        open_store(address, config.s3, config.encryption.key or "", key_class=layout.key_class)
        if address
        else archive_store(frame)
    )
    undone = undo_settings(Cluster(config.target, "target"), state, restore_id, dry_run)
    show_changes(undone.changes, reporter)
    for why in undone.missing:
        reporter.warning(why)
    if not undone.changes:
        reporter.line("nothing is left to undo")
    reporter.document(undone)
    return EXIT_LOSS if undone.missing else EXIT_OK
