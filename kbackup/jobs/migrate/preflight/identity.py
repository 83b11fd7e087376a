"""The checks of the cluster id and of the archive."""

from __future__ import annotations

from kbackup.jobs.migrate.preflight.controllers import storage_ids
from kbackup.jobs.migrate.preflight.findings import Findings
from kbackup.jobs.migrate.preflight.line import Line, failed, listed, not_looked_at, ok
from kbackup.jobs.migrate.unread import NotRead, first_unread

CLUSTER_ID = "cluster id"
ARCHIVE = "archive: whole metadata"

_MAX_AGE = 3600.0  # s
_CLOCK_SKEW = 60.0  # s that the archive's time may lie ahead of this machine's


def check_cluster_id(findings: Findings) -> Line:
    """Check that brokers, ZooKeeper and the controllers' formatted storage have the same cluster id."""
    brokers, zookeeper, controllers = findings.brokers, findings.zookeeper, findings.controllers
    ids: dict[str, str | NotRead] = {
        "brokers": brokers if isinstance(brokers, NotRead) else brokers.cluster_id,
        "ZooKeeper": zookeeper if isinstance(zookeeper, NotRead) else zookeeper.cluster_id,
    }
    ids |= {"controllers": controllers} if isinstance(controllers, NotRead) else storage_ids(controllers)
    read = {side: cluster_id for side, cluster_id in ids.items() if isinstance(cluster_id, str)}
    if len(set(read.values())) > 1:
        sides = ", ".join(f"{side} {cluster_id}" for side, cluster_id in read.items())
        return failed(
            CLUSTER_ID,
            f"not the same: {sides}",
            "format the controllers' storage anew with ZooKeeper's id: kafka-storage.sh format -t ID",
        )
    if unread := first_unread(*ids.values()):
        return not_looked_at(CLUSTER_ID, unread)
    return ok(CLUSTER_ID, f"{next(iter(read.values()))} on every side")


def check_archive(findings: Findings) -> Line:
    """Check that the archive holds the whole metadata of this cluster, not older than an hour."""
    archive = findings.archive
    if isinstance(archive, NotRead):
        return not_looked_at(ARCHIVE, archive)
    again = "run 'kbackup migrate archive'"
    if archive is None:
        return failed(ARCHIVE, "there is no restore point", again)
    name = f"restore point {archive.restore_point}"
    ids = {
        part.cluster_id for part in (findings.brokers, findings.zookeeper) if not isinstance(part, NotRead)
    }
    if ids and archive.cluster_id not in ids:
        return failed(
            ARCHIVE, f"{name} is of cluster {archive.cluster_id}", "name the archive of this cluster"
        )
    if archive.missing:
        return failed(
            ARCHIVE,
            f"{name} lacks {listed(archive.missing)}",
            "name ZooKeeper in [source], use an encrypted archive, and run 'kbackup migrate archive'",
        )
    age = findings.now - archive.captured_at
    if age > _MAX_AGE:
        return failed(ARCHIVE, f"{name} is {age / 3600:.1f} hours old", again)
    if age < -_CLOCK_SKEW:
        return failed(ARCHIVE, f"{name} is {-age:.0f} s in the future", f"set the clocks, then {again}")
    return ok(ARCHIVE, f"{name}, {max(age, 0) / 60:.0f} minutes old")
