"""What the guide asks a cluster that is about to be restored into: which one it is, its topics, its groups' members."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from functools import cached_property
from typing import NamedTuple

from kbackup.archive.query.selection import Selection
from kbackup.errors import KbackupError, UsageError
from kbackup.jobs.groups.job import prepare
from kbackup.jobs.groups.plan import GroupsRequest, Moment
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.store.base import Store
from kbackup.util.text import join_names
from kbackup.util.times import ms_of

_SECONDS = 3.0
"""How long an address that was typed may take to accept a connection: whoever mistyped it waits for the answer."""
_ADDRESS = r"[^\s,-][^\s,]*:\d+"


def parse_servers(answer: str) -> str:
    """Return the address of a cluster as it was typed, without blanks. `UsageError` for other text."""
    servers = answer.strip()
    if not re.fullmatch(rf"{_ADDRESS}(,{_ADDRESS})*", servers):
        raise UsageError(f"{answer} is not an address", "give host:port, or several with commas between")
    return servers


class DeletedRange(NamedTuple):
    """Offsets of a partition from `start` to `end` (exclusive) whose records are deleted in the topic."""

    topic: str
    partition: int
    start: int
    end: int


class GuidedTarget:
    """The cluster at `servers`, with the client properties of `[target]`. It is asked once for each thing."""

    def __init__(self, properties: Properties, servers: str) -> None:
        self.servers = servers
        self._properties: Properties = {**properties, "bootstrap.servers": servers}

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self._properties, "target")

    @cached_property
    def cluster_id(self) -> str:
        """The id of the cluster. `KbackupError` if it does not answer."""
        cluster_id, _ = self._cluster.connect()
        return cluster_id

    @cached_property
    def topic_names(self) -> Collection[str]:
        """The topics that the cluster has. `KbackupError` if it does not answer."""
        _check_listening(self.servers)
        self._cluster.connect()
        return set(self._cluster.topic_names())

    @property
    def has_authorizer(self) -> bool:
        """Whether the cluster has an authorizer, without which it takes no ACLs."""
        self._cluster.connect()
        acls = self._cluster.security.acls()
        return not (isinstance(acls, Unavailable) and acls.reason == "not there")

    def members(self, group: str) -> str:
        """Return the live members of a group in words, '' if it has none. Asks anew each time."""
        members, unknown = self._cluster.groups.members([group])
        return unknown.get(group) or members.get(group, "")

    def deleted_records(self, store: Store, group: str, moment: str | None) -> list[DeletedRange]:
        """Return the records, by partition, which the group would read again from its archived offsets, and which are
        deleted in the cluster's topics. `moment` is the time of the offsets, None for the newest restore point."""
        at = ms_of(moment) if moment is not None else None
        selection = Selection.of((group,), ())
        request = GroupsRequest(same_offsets=True, moment=Moment(at=at), selection=selection)
        prepared = prepare(self._cluster, store, store, request)
        deleted: list[DeletedRange] = []
        for plan in prepared.plans:
            for offset in plan.offsets:
                if offset.how == "expired":
                    deleted.append(DeletedRange(offset.topic, offset.partition, offset.source, offset.target))
        return deleted

    def check_reachable(self) -> None:
        """Check that a cluster answers at the address. `UsageError` if not, so that the address is asked for again."""
        _check_listening(self.servers)
        try:
            _ = self.cluster_id
        except KbackupError as error:
            raise UsageError(error.message, error.hint) from None


def _check_listening(servers: str) -> None:
    """Raise `UsageError` unless one of the addresses accepts a connection. That takes seconds, where a client of
    Kafka's tries again for longer."""
    reasons: list[str] = []
    for address in servers.split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS):
                return
        except (OSError, OverflowError) as error:
            reasons.append(f"{address} ({error})")
    raise UsageError(f"nothing answers at {join_names(reasons, 3)}", "check host and port, and type it again")
