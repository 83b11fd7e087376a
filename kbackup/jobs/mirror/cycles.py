"""Cycles that no name shows: under the Identity policy, topics keep their names on their way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kbackup.errors import UsageError
from kbackup.jobs.mirror.flow import Flow, NameFilter
from kbackup.jobs.mirror.policy import IdentityPolicy
from kbackup.jobs.mirror.topics import reason_to_skip

_PROBES = ("orders", "a", "topic-1", "x.y")
"""Names that a topic may have, beside the ones that the properties file names."""


def without_cycles(flows: Sequence[Flow], names: Sequence[str], file: str) -> tuple[Flow, ...]:
    """Return the flows, each knowing which topics would come back to its source.

    Raise `UsageError` where one of `names`, or any likely name, goes round. Other topics that do are found by their
    names when they appear, and are held back.
    """
    looped = [flow for flow in flows if isinstance(flow.policy, IdentityPolicy)]
    if not looped:
        return tuple(flows)
    for flow in flows:
        comes_back = _comes_back(flow, flows)
        for name in (*_PROBES, *names):
            if reason_to_skip(flow, name) is None and comes_back(name):
                raise UsageError(
                    f"{file}: topic {name!r} of {flow.source} would go round: {flow.name} and the flows back to "
                    f"{flow.source} all select it, and the Identity policy can't tell where a topic came from",
                    "give the flows topics that don't meet, or use the Default policy",
                )
    return tuple(replace(flow, comes_back=_comes_back(flow, flows)) for flow in flows)


def _comes_back(flow: Flow, flows: Sequence[Flow]) -> NameFilter:
    """Return whether a topic of the flow's source comes back to it under a name that the flow selects again."""

    def goes_on(cluster: str, name: str, passed: frozenset[str]) -> bool:
        if cluster == flow.source:
            return reason_to_skip(flow, name) is None
        onward = (f for f in flows if f.source == cluster and f.target not in passed)
        return any(
            reason_to_skip(f, name) is None
            and goes_on(f.target, f.policy.format_remote_topic(f.source, name), passed | {f.target})
            for f in onward
        )

    def comes_back(name: str) -> bool:
        remote = flow.policy.format_remote_topic(flow.source, name)
        return goes_on(flow.target, remote, frozenset({flow.target}))

    return comes_back
