"""Checks of topics and partitions: nothing is offline, deleted or moved at the moment."""

from __future__ import annotations

from kbackup.jobs.migrate.preflight.findings import Findings
from kbackup.jobs.migrate.preflight.line import Line, failed, listed, not_looked_at, ok
from kbackup.jobs.migrate.unread import NotRead

OFFLINE = "partitions: online"
DELETIONS = "topics: deletions"
REASSIGNMENTS = "partitions: reassignments"


def check_offline(findings: Findings) -> Line:
    """Check that every partition has a leader."""
    if isinstance(findings.brokers, NotRead):
        return not_looked_at(OFFLINE, findings.brokers)
    if offline := findings.brokers.offline:
        return failed(
            OFFLINE,
            f"{len(offline)} without a leader: {listed(offline)}",
            "start the brokers that hold them, then run it again",
        )
    return ok(OFFLINE, "each has a leader")


def check_deletions(findings: Findings) -> Line:
    """Check that no topic waits for its deletion, by ZooKeeper: brokers don't report this."""
    if isinstance(findings.zookeeper, NotRead):
        return not_looked_at(DELETIONS, findings.zookeeper)
    if deletions := findings.zookeeper.deletions:
        return failed(
            DELETIONS,
            f"{len(deletions)} wait for deletion: {listed(deletions)}",
            "start every broker that holds a replica of them, and wait until /admin/delete_topics is empty",
        )
    return ok(DELETIONS, "none waits for its deletion")


def check_reassignments(findings: Findings) -> Line:
    """Check that no partition moves to other brokers, by ZooKeeper or else by the brokers."""
    zookeeper, brokers = findings.zookeeper, findings.brokers
    moving: tuple[str, ...] | NotRead
    if not isinstance(zookeeper, NotRead):
        moving = zookeeper.reassigning
    elif not isinstance(brokers, NotRead):
        moving = brokers.reassigning
    else:
        moving = zookeeper
    if isinstance(moving, NotRead):
        return not_looked_at(REASSIGNMENTS, moving)
    if moving:
        return failed(
            REASSIGNMENTS,
            f"{len(moving)} running: {listed(moving)}",
            "wait until it is done, or cancel it: kafka-reassign-partitions.sh --cancel",
        )
    return ok(REASSIGNMENTS, "none is running")
