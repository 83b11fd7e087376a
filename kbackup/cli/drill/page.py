"""Render a drill's report as one HTML page without scripts and without other files, for screen and paper. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from jinja2 import Environment

from kbackup.cli.common.compare import difference_text
from kbackup.jobs.compare.report import AgainstReport
from kbackup.jobs.drill.report import DrillReport
from kbackup.util.html import templates
from kbackup.util.text import human_count, human_duration, human_size, plural
from kbackup.util.times import human_time

_MOST = 200  # rows of a table
_FOOTNOTE = (
    "Every record that was restored was read back and compared with the archive: how many there are, their order, "
    "and of each one key, value, headers and timestamp; then the offsets of the consumer groups. The topics were "
    "restored under names of their own, with settings under which nothing expires or changes; no other topic and "
    "no real group was touched."
)


class _Group(NamedTuple):
    name: str
    offsets: int
    ok: bool


def drill_page(report: DrillReport) -> str:
    """Return the page of a report. Names of the report can't become markup."""
    compared = report.comparison
    return (
        _environment()
        .get_template("drill.html.j2")
        .render(
            report=report,
            compared=compared,
            sentence=_sentence(report),
            data_as_of=_moment(report.restore_point_at) if report.restore_point_at else "-",
            data_note=_data_note(report),
            restore_seconds=_restore_seconds(report),
            topics=sorted(compared.topics, key=lambda t: (t.ok, t.source)) if compared else [],
            groups=_groups(compared) if compared else [],
            groups_note=_groups_note(compared),
            differences=_differences(compared) if compared else [],
            details=_details(report),
            footnote=_FOOTNOTE,
            most=_MOST,
        )
    )


def _environment() -> Environment:
    environment = templates("kbackup.cli.drill")
    environment.filters |= {"size": human_size, "count": human_count, "duration": human_duration, "moment": _moment}
    return environment


def _moment(rfc3339: str) -> str:
    """Return '2026-01-31 01:02 UTC' for '2026-01-31T01:02:03.456Z'; other text is returned unchanged."""
    try:
        return datetime.fromisoformat(rfc3339).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return rfc3339


def _sentence(report: DrillReport) -> str:
    if report.result == "interrupted":
        return "The drill was interrupted before it came to its end. It says nothing about the backup."
    if report.error is not None:
        return f"The drill could not be carried through: {report.error.message}."
    compared = report.comparison
    if report.result == "passed" and compared is not None:
        return (
            f"The backup was restored and is what the archive holds: {plural(compared.records, 'record')} in "
            f"{plural(len(compared.topics), 'topic')}, compared one by one."
        )
    if report.losses:
        places = plural(len(report.losses), "place")
        return f"The archive has lost records of what was restored, in {places}: see below."
    if compared is not None and not compared.findings:
        return "All records came back, but something else went wrong: see below."
    return "Not everything came back as it is in the archive: see below."


def _data_note(report: DrillReport) -> str:
    parts = [f"restore point {report.restore_point}"] if report.restore_point else []
    if report.data_age is not None:
        parts.append(f"{human_duration(report.data_age)} old when the drill began")
    if report.choice is not None and report.choice.to_time is not None:
        parts.append(f"records up to {human_time(report.choice.to_time)}")
    return ", ".join(parts)


def _restore_seconds(report: DrillReport) -> float | None:
    if not report.restored_records and not any(name.startswith("restore: ") for name in report.seconds):
        return None
    return sum(s for name, s in report.seconds.items() if name.startswith("restore: "))


def _groups(compared: AgainstReport) -> list[_Group]:
    results: dict[str, list[bool]] = {}
    for check in compared.groups:
        results.setdefault(check.source_group, []).append(check.ok)
    groups = [_Group(name, len(oks), all(oks)) for name, oks in results.items()]
    return sorted(groups, key=lambda g: (g.ok, g.name))


def _groups_note(compared: AgainstReport | None) -> str:
    if compared is None:
        return "the drill ended before"
    wrong = sum(not check.ok for check in compared.groups)
    return f"{plural(len(compared.groups), 'offset')}, {'all' if not wrong else f'{wrong:,} not'} where they belong"


def _differences(compared: AgainstReport) -> list[tuple[str, str]]:
    return [
        (f"{partition.topic}-{partition.partition}", difference_text(each))
        for partition in compared.partitions
        for each in partition.differences
    ]


def _details(report: DrillReport) -> Iterable[tuple[str, str]]:
    yield "drill", report.drill_id
    yield "began", report.started_at
    yield "ended", report.ended_at
    for name, words in (("verify", "comparing took"), ("clean up", "deleting took")):
        if name in report.seconds:
            yield words, human_duration(report.seconds[name])
    yield "archive", report.archive
    yield "archive id", report.archive_id
    yield "damaged restore points", ", ".join(map(str, report.damaged)) or "none"
    yield "restored into", f"cluster {report.target_cluster_id} at {report.target}"
    yield "as topics and groups", f"{report.prefix}*"
    yield "versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())
