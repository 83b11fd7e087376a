"""Set the configs of remote topics by the flow's filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.kafka.admin import Cluster


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
    raise NotImplementedError
