"""Create the ACLs of remote topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbackup.archive.models import Acl
from kbackup.jobs.mirror.flow import Flow, NameFilter
from kbackup.kafka.admin import Cluster


@dataclass(frozen=True, slots=True)
class AclsReport:
    """`created` in words; `refused` has each reason of the target once."""

    created: tuple[str, ...]
    refused: tuple[str, ...]


def sync_acls(
    flow: Flow, acls: Sequence[Acl] | None, replicated: NameFilter, cluster: Cluster, *, dry_run: bool = False
) -> AclsReport:
    """Create the ACLs that the flow gives remote topics, less those that the target has; none is ever deleted.

    `acls` are the source's, from `Metadata.acls` (None: the archive does not know them). `replicated` tells whether a
    name of the source is a topic that the flow replicates, whether or not the topic exists."""
    raise NotImplementedError
