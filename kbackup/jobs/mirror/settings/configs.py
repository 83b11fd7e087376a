"""Set the configs of remote topics by the flow's filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.kafka.admin.cluster import Cluster


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
    default. Configs that the flow excludes stay as they are."""
    known = {topic.remote: topic.configs for topic in topics if topic.configs is not None}
    changed: dict[str, dict[str, str | None]] = {}
    for remote, current in cluster.topic_configs({*known} & {*cluster.topic_names()}).items():
        if changes := _changes(flow, known[remote], current):
            changed[remote] = changes
    refused = {} if dry_run else cluster.topic_admin.alter_configs(changed)
    return ConfigsReport({remote: c for remote, c in changed.items() if remote not in refused}, refused)


def replicated_configs(flow: Flow, configs: Mapping[str, str]) -> dict[str, str]:
    """The configs of a source's topic that its remote topic gets too."""
    return {name: value for name, value in configs.items() if not flow.excluded_configs(name)}


def _changes(flow: Flow, source: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str | None]:
    """Return the configs of a remote topic to set; None for those to remove."""
    intended = replicated_configs(flow, source)
    changes: dict[str, str | None] = {
        name: None for name in replicated_configs(flow, current) if name not in intended
    }
    return changes | {name: value for name, value in intended.items() if current.get(name) != value}
