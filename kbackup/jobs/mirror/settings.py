"""Topics of a flow's target, their partitions, configs and ACLs, as MirrorMaker 2 keeps them.

Each function changes what differs, goes on after a refusal, and reports it: a topic that the target refuses must not
hold the others back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import astuple, replace

from kbackup.errors import KbackupError
from kbackup.jobs.mirror.flow import Flow, IdentityPolicy, NameFilter, RemoteTopic
from kbackup.kafka.admin.cluster import Cluster, TopicToCreate
from kbackup.kafka.security import Unavailable
from kbackup.metadata.entities import Acl


@dataclass(frozen=True, slots=True)
class ConfigsReport:
    """`changed` maps a remote topic to its new values (None: back to the target's default), `refused` maps one to the
    target's reason."""

    changed: Mapping[str, Mapping[str, str | None]]
    refused: Mapping[str, str]


def sync_configs(
    flow: Flow, topics: Sequence[RemoteTopic], cluster: Cluster, *, dry_run: bool = False
) -> ConfigsReport:
    """Give remote topics the source's dynamic configs; a config that the source does not set goes back to the target's
    default. Configs that the flow excludes stay as they are. `dry_run`: the target only checks whether it would take
    the changes."""
    known = {topic.remote: topic.configs for topic in topics if topic.configs is not None}
    changed: dict[str, dict[str, str | None]] = {}
    present, unread = cluster.readable_topic_configs({*known} & {*cluster.topic_names()})
    for remote, current in present.items():
        due = replicated_configs(flow, known[remote])
        changes: dict[str, str | None] = {name: None for name in replicated_configs(flow, current) if name not in due}
        changes |= {name: value for name, value in due.items() if current.get(name) != value}
        if changes:
            changed[remote] = changes
    errors = cluster.topic_admin.alter_configs(changed, dry_run=dry_run)
    refused = {remote: error.message for remote, error in {**unread, **errors}.items()}
    return ConfigsReport({remote: c for remote, c in changed.items() if remote not in refused}, refused)


def replicated_configs(flow: Flow, configs: Mapping[str, str]) -> dict[str, str]:
    """Return the configs of a source's topic that its remote topic gets too."""
    return {name: value for name, value in configs.items() if not flow.excluded_configs(name)}


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
    """Create the ACLs of remote topics that the target lacks; none is ever deleted.

    `acls` are the source's, from `Metadata.acls` (None: the archive does not know them). `replicated` is a function of
    a source name: whether the flow replicates that topic, existing or not."""
    if not acls:
        return AclsReport((), ())
    rules = {rule for acl in acls if (rule := remote_acl(flow, acl, replicated)) is not None}
    answer = cluster.security.acls()
    if isinstance(answer, Unavailable) and answer.reason == "not there":
        return AclsReport((), (f"{answer.why}, so it takes no ACLs",) if rules else ())
    existing = set() if isinstance(answer, Unavailable) else {*answer[0]}
    new = sorted(rules - existing, key=astuple)
    answers = dict.fromkeys(new, "") if dry_run else cluster.security.create_acls(new)
    return AclsReport(
        created=tuple(acl.words for acl, why in answers.items() if not why),
        refused=tuple(dict.fromkeys(filter(None, answers.values()))),
    )


def remote_acl(flow: Flow, acl: Acl, replicated: NameFilter) -> Acl | None:
    """Return the ACL of a remote topic for an ACL of the source; None if it has none.

    Nobody but the mirror may write to a remote topic: ALLOW WRITE is dropped, and ALLOW ALL becomes ALLOW READ. Under
    the Identity policy the topic may be the target's own as well: only what reads is allowed there, and an ACL of every
    topic has no counterpart."""
    allowed = acl.permission == "allow"
    if isinstance(flow.policy, IdentityPolicy) and (acl.name == "*" or (allowed and acl.operation not in _READING)):
        return None
    if acl.resource != "topic" or acl.pattern != "literal" or (allowed and acl.operation == "write"):
        return None
    if not replicated(acl.name):
        return None
    operation = "read" if allowed and acl.operation == "all" else acl.operation
    remote = flow.policy.format_remote_topic(flow.source, acl.name)
    return replace(acl, name=remote, operation=operation)


@dataclass(frozen=True, slots=True)
class TopicsReport:
    """Remote topics by name. `grown` maps a topic to its new number of partitions, `refused` to the target's reason.

    Records of a refused topic wait: the topic, or the partition that a record belongs to, is missing."""

    created: tuple[str, ...]
    grown: Mapping[str, int]
    refused: Mapping[str, str]


def sync_topics(flow: Flow, topics: Sequence[RemoteTopic], cluster: Cluster, *, dry_run: bool = False) -> TopicsReport:
    """Create the remote topics that the target lacks, with the source's configs and number of partitions, and add
    partitions to those that have fewer. `dry_run`: the target only checks whether it would make the changes."""
    # a name that is too long for Kafka would fail the request as a whole
    existing = cluster.topics({topic.remote for topic in topics} & {*cluster.topic_names()})
    new = {topic.remote: topic for topic in topics if topic.remote not in existing}
    growing = {
        topic.remote: topic.partitions
        for topic in topics
        if topic.remote in existing and len(existing[topic.remote].partitions) < topic.partitions
    }
    due = (
        TopicToCreate(name, t.partitions, flow.replication_factor, replicated_configs(flow, t.configs or {}))
        for name, t in new.items()
    )
    refused: dict[str, KbackupError] = {}
    refused |= cluster.topic_admin.create(due, exist_ok=True, dry_run=dry_run)
    refused |= cluster.topic_admin.add_partitions(growing, dry_run=dry_run)
    # a topic that exists, but that the target does not show to this user, counts as created so far
    refused |= cluster.described_topics(new.keys() - refused.keys())[1]
    if not dry_run:
        totals = {remote: topic.partitions for remote, topic in new.items()} | growing
        refused |= cluster.topic_admin.wait_visible({name: n for name, n in totals.items() if name not in refused})
    return TopicsReport(
        created=tuple(sorted(new.keys() - refused.keys())),
        grown={remote: total for remote, total in sorted(growing.items()) if remote not in refused},
        refused={remote: error.message for remote, error in refused.items()},
    )
