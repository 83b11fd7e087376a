"""Findings of a preflight, and the line of one check."""

from __future__ import annotations

from dataclasses import replace

from kbackup.jobs.migrate.preflight.checks import judge
from kbackup.jobs.migrate.preflight.findings import ArchiveFindings, Findings
from kbackup.jobs.migrate.preflight.line import Line
from tests.support.healthy_cluster import (
    CLUSTER,
    NOW,
    findings,
)


def line(judged: Findings, name: str) -> Line:
    (one,) = [line for line in judge(judged).lines if line.name == name]
    return one


def archive(**changes: object) -> Findings:
    base = ArchiveFindings(7, NOW - 600, CLUSTER, ())
    return replace(findings(), archive=replace(base, **changes))  # type: ignore[arg-type]  # names of fields
