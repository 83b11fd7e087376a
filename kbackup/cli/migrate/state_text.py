"""Format the state of a migration for people and for `--json`."""

from __future__ import annotations

from kbackup.cli.common.human import plural
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.table import Cell
from kbackup.jobs.migrate.states.judge import StateReport
from kbackup.util.text import shorten

_NAMED = 3


def state_document(report: StateReport) -> dict[str, object]:
    """Return the report for `--json`."""
    return {
        "state": report.state,
        "certain": report.is_certain,
        "possible": report.possible,
        "way_back": report.way_back,
        "zookeeper_brokers": report.zk_brokers,
        "records_behind": report.lag,
        "waits_for": report.waits_for,
        "witnesses": [
            {"witness": claim.witness, "says": claim.says, "allows": sorted(claim.states)}
            for claim in report.claims
        ],
        "disagreements": report.disagreements,
        "not_looked_at": [{"why": unread.why, "hint": unread.hint} for unread in report.not_looked_at],
        "next_step": report.next_step,
    }


def state_words(report: StateReport) -> str:
    """Return the state as words: 'dual write', or 'unknown: dual write or brokers moved'."""
    if report.state != "unknown":
        return report.state if report.is_certain else f"{report.state}, not certain"
    return f"unknown: {' or '.join(report.possible)}" if report.possible else "unknown"


def state_fields(report: StateReport) -> list[tuple[str, Cell]]:
    """Return the fields that `status` shows."""
    way_back = "yes" if report.way_back else "not certain" if report.state == "unknown" else "no"
    behind = "-" if report.lag is None else plural(report.lag, "record")
    return [
        ("state", state_words(report)),
        ("way back", way_back),
        ("brokers in ZooKeeper mode", report.zk_brokers),
        ("ZooKeeper is behind", behind),
        *(("waits for", text) for text in report.waits_for),
        *((claim.witness, claim.says) for claim in report.claims),
        *(("not looked at", f"{unread.why}; {unread.hint}") for unread in report.not_looked_at),
        *(("disagreement", text) for text in report.disagreements),
        ("next step", report.next_step),
    ]


def state_line(report: StateReport) -> str:
    """Return the state in one line, for `--follow` without a terminal."""
    parts = [state_words(report)]
    if report.zk_brokers is not None:
        parts.append(f"{plural(report.zk_brokers, 'broker')} in ZooKeeper mode")
    if report.lag is not None:
        parts.append(f"{plural(report.lag, 'record')} behind")
    if report.waits_for:
        parts.append(f"waits for {shorten(report.waits_for, _NAMED, '; ')}")
    if report.disagreements:
        parts.append(plural(len(report.disagreements), "disagreement"))
    return ", ".join(parts)


def show_state(report: StateReport, reporter: Reporter) -> None:
    reporter.fields(state_fields(report))
