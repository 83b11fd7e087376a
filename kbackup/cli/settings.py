"""What a restore is going to set beside records, shown before it does."""

from __future__ import annotations

from kbackup.cli.output import Reporter
from kbackup.jobs.settings_plan import SettingsReport


def show_settings(planned: SettingsReport, reporter: Reporter) -> None:
    """Differences to the target; nothing where nothing was asked for, or there are none."""
    if planned.acls:
        reporter.table(
            ("new acl for", "host", "permission", "operation", "resource", "name", "pattern"),
            [
                (a.principal, a.host, a.permission, a.operation, a.resource, a.name, a.pattern)
                for a in planned.acls
            ],
        )
        reporter.line()
    if planned.configs:
        reporter.table(
            ("config", "of", "now", "becomes"),
            [(c.name, f"{c.kind} {c.owner}", c.before, c.after) for c in planned.configs],
        )
        reporter.line()
    for left in planned.not_carried:
        reporter.note(f"not carried: {left.what} ({left.why})")
    for warning in (*planned.warnings, *planned.missing):
        reporter.warning(warning)
