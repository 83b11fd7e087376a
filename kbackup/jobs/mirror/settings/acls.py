"""Create the ACLs of remote topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbackup.jobs.mirror.flow import Flow, NameFilter
from kbackup.jobs.mirror.policy import IdentityPolicy
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.admin.security_types import AclRule, Untold, acl_words
from kbackup.metadata.entities import Acl

_READING = ("read", "describe", "describe_configs", "all")
"""Operations that are allowed under the Identity policy; `all` becomes `read`."""


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
    if not acls:
        return AclsReport((), ())
    rules = {rule for acl in acls if (rule := remote_acl(flow, acl, replicated)) is not None}
    answer = cluster.security.acls()
    if isinstance(answer, Untold) and answer.reason == "not there":
        return AclsReport((), (f"{answer.why}, so it takes no ACLs",) if rules else ())
    existing = set() if isinstance(answer, Untold) else {*answer[0]}
    new = sorted(rules - existing)
    answers = dict.fromkeys(new, "") if dry_run else cluster.security.create_acls(new)
    return AclsReport(
        created=tuple(acl_words(rule) for rule, why in answers.items() if not why),
        refused=tuple(dict.fromkeys(filter(None, answers.values()))),
    )


def remote_acl(flow: Flow, acl: Acl, replicated: NameFilter) -> AclRule | None:
    """Return the ACL of a remote topic for an ACL of the source; None where it has none.

    Nobody but the mirror may write to a remote topic: ALLOW WRITE is dropped, and ALLOW ALL becomes ALLOW READ. Under
    the Identity policy the topic may be the target's own as well: only what reads is allowed there, and an ACL of every
    topic has no counterpart."""
    allowed = acl.permission == "allow"
    if isinstance(flow.policy, IdentityPolicy) and (
        acl.name == "*" or (allowed and acl.operation not in _READING)
    ):
        return None
    if acl.resource != "topic" or acl.pattern != "literal" or (allowed and acl.operation == "write"):
        return None
    if not replicated(acl.name):
        return None
    operation = "read" if allowed and acl.operation == "all" else acl.operation
    remote = flow.policy.format_remote_topic(flow.source, acl.name)
    return AclRule(acl.resource, remote, acl.pattern, acl.principal, acl.host, operation, acl.permission)
