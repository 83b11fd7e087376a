"""All checks of the preflight, in the order of their lines."""

from __future__ import annotations

from collections.abc import Callable

from kbackup.jobs.migrate.preflight.brokers import (
    check_alive,
    check_ids,
    check_protocol,
    check_release,
    check_version,
)
from kbackup.jobs.migrate.preflight.controllers import (
    check_brokers_enabled,
    check_dedicated,
    check_enabled,
    check_zookeeper,
)
from kbackup.jobs.migrate.preflight.findings import Findings
from kbackup.jobs.migrate.preflight.identity import check_archive, check_cluster_id
from kbackup.jobs.migrate.preflight.line import Line, PreflightReport
from kbackup.jobs.migrate.preflight.listeners import check_listeners
from kbackup.jobs.migrate.preflight.partitions import check_deletions, check_offline, check_reassignments
from kbackup.jobs.migrate.preflight.shared import (
    check_authorizer,
    check_encoder,
    check_login,
    check_quorum,
    check_super_users,
    check_tokens,
    check_znode_acls,
)

CHECKS: tuple[Callable[[Findings], Line], ...] = (
    check_cluster_id,
    check_alive,
    check_release,
    check_protocol,
    check_version,
    check_ids,
    check_offline,
    check_deletions,
    check_reassignments,
    check_dedicated,
    check_enabled,
    check_brokers_enabled,
    check_zookeeper,
    check_listeners,
    check_authorizer,
    check_super_users,
    check_encoder,
    check_tokens,
    check_znode_acls,
    check_login,
    check_quorum,
    check_archive,
)


def judge(findings: Findings) -> PreflightReport:
    """Run every check on the findings."""
    return PreflightReport.of(tuple(check(findings) for check in CHECKS))
