"""Topics of a flow's target, their partitions, configs and ACLs, as MirrorMaker 2 keeps them.

Each function changes what differs, goes on after a refusal, and reports it: a topic that the target refuses must not
hold the others back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import astuple, replace

from kbackup.errors import KbackupError
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import TopicToCreate
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.entities import Acl
from kbackup.mirror.flow import Flow, IdentityPolicy, RemoteTopic
from kbackup.mirror.topics import reason_to_skip


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
    names = set(cluster.topic_names()).intersection(known)
    present, unread = cluster.readable_topic_configs(names)
    changed: dict[str, dict[str, str | None]] = {}
    for remote, current in present.items():
        changes = config_changes(flow, known[remote], current)
        if changes:
            changed[remote] = changes
    # Topics without a difference are not asked to change: most rounds send no request here.
    errors = cluster.topic_admin.alter_configs(changed, dry_run=dry_run)
    refused = {remote: error.message for remote, error in {**unread, **errors}.items()}
    taken = {remote: changes for remote, changes in changed.items() if remote not in refused}
    return ConfigsReport(taken, refused)


def config_changes(flow: Flow, source: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str | None]:
    """Return the new values of a remote topic's configs (None: the target's default). `source` are the configs of the
    source's topic, `current` those of the remote topic."""
    due = replicated_configs(flow, source)
    changes: dict[str, str | None] = {}
    # Only what the flow replicates is reset. A config that it excludes may have been set in the target on purpose.
    for name in replicated_configs(flow, current):
        if name not in due:
            changes[name] = None
    for name, value in due.items():
        if current.get(name) != value:
            changes[name] = value
    return changes


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


def sync_acls(flow: Flow, acls: Sequence[Acl] | None, cluster: Cluster, *, dry_run: bool = False) -> AclsReport:
    """Create the ACLs of remote topics that the target lacks; none is ever deleted.

    `acls` are the source's, from `Metadata.acls` (None: the archive does not know them). The remote topics need not
    exist."""
    if not acls:
        return AclsReport((), ())
    rules: set[Acl] = set()
    for acl in acls:
        rule = remote_acl(flow, acl)
        if rule is not None:
            rules.add(rule)
    answer = cluster.security.acls()
    if isinstance(answer, Unavailable) and answer.reason == "not there":
        refused = (f"{answer.why}, so it takes no ACLs",) if rules else ()
        return AclsReport((), refused)
    # A target that does not show its ACLs is asked to create all of them: those that are there stay as they are.
    existing = set[Acl]()
    if not isinstance(answer, Unavailable):
        acls_of_target, _ = answer
        existing.update(acls_of_target)
    new = sorted(rules - existing, key=astuple)
    answers = dict.fromkeys(new, "") if dry_run else cluster.security.create_acls(new)
    created = [acl.words for acl, why in answers.items() if not why]
    reasons = dict.fromkeys(why for why in answers.values() if why)
    return AclsReport(tuple(created), tuple(reasons))


def remote_acl(flow: Flow, acl: Acl) -> Acl | None:
    """Return the ACL of a remote topic for an ACL of the source; None if it has none.

    Nobody but the mirror may write to a remote topic: ALLOW WRITE is dropped, and ALLOW ALL becomes ALLOW READ. Under
    the Identity policy the topic may be the target's own as well: only what reads is allowed there, and an ACL of every
    topic has no counterpart."""
    is_allowed = acl.permission == "allow"
    # As MirrorMaker 2 does: it replicates the literal ACLs of topics alone.
    if acl.resource != "topic" or acl.pattern != "literal":
        return None
    if is_allowed and acl.operation == "write":
        return None
    if isinstance(flow.policy, IdentityPolicy):
        # Without prefixes in their names, "every topic" would be the target's own topics as well.
        reads = acl.operation in _READING
        if acl.name == "*" or (is_allowed and not reads):
            return None
    if reason_to_skip(flow, acl.name) is not None:
        return None
    operation = "read" if is_allowed and acl.operation == "all" else acl.operation
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
    remotes = {topic.remote for topic in topics}
    # Only listed ones are described: a name that is too long for Kafka would fail the request as a whole.
    listed = remotes.intersection(cluster.topic_names())
    # A topic that is hidden from us since it was listed is treated as the ones that are not listed, below.
    existing, _ = cluster.described_topics(listed)
    new: dict[str, int] = {}
    growing: dict[str, int] = {}
    to_create: list[TopicToCreate] = []
    for topic in topics:
        there = existing.get(topic.remote)
        if there is None:
            new[topic.remote] = topic.partitions
            configs = replicated_configs(flow, topic.configs or {})
            to_create.append(TopicToCreate(topic.remote, topic.partitions, flow.replication_factor, configs))
        elif len(there.partitions) < topic.partitions:
            growing[topic.remote] = topic.partitions
    refused: dict[str, KbackupError] = {}
    # A topic may exist and not be listed, as our user may not see it: that is no refusal here.
    refused |= cluster.topic_admin.create(to_create, exist_ok=True, dry_run=dry_run)
    refused |= cluster.topic_admin.add_partitions(growing, dry_run=dry_run)
    # A topic that exists, but that the target does not show to this user, counts as created so far.
    _, hidden = cluster.described_topics(new.keys() - refused.keys())
    refused |= hidden
    if not dry_run:
        due = {remote: total for remote, total in {**new, **growing}.items() if remote not in refused}
        # A broker that does not know a new topic yet would refuse its first records.
        refused |= cluster.topic_admin.wait_visible(due)
    created = sorted(new.keys() - refused.keys())
    grown = {remote: growing[remote] for remote in sorted(growing) if remote not in refused}
    reasons = {remote: error.message for remote, error in refused.items()}
    return TopicsReport(tuple(created), grown, reasons)
