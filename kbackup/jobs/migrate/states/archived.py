"""Find the state of a migration at a restore point, by the znodes that it holds."""

from __future__ import annotations

from kbackup.archive.models import Metadata
from kbackup.jobs.migrate.states.judge import StateReport, judge
from kbackup.jobs.migrate.states.witnesses import Witnesses
from kbackup.jobs.migrate.unread import NotRead
from kbackup.jobs.migrate.znodes import witness_of

_NO_METRICS = NotRead("a restore point holds no metrics", "run 'kbackup migrate status'")
_NO_STATE = NotRead("a restore point holds no state of a metadata log", "run 'kbackup migrate status'")


def archived_state(metadata: Metadata) -> StateReport | None:
    """Return the state of a migration by the znodes of a restore point; None where it holds none. Only ZooKeeper's own
    registrations tell which brokers run with it."""
    if metadata.znodes is None:
        return None
    registered = metadata.registrations if metadata.sources.get("registrations") == "zookeeper" else None
    brokers = frozenset(each.id for each in registered or () if each.role == "broker")
    znodes: dict[str, bytes | str] = {znode.path: znode.content for znode in metadata.znodes}
    return judge(Witnesses((_NO_METRICS,), witness_of(znodes, brokers), _NO_STATE))
