"""infra/docs/troubleshooting.md quotes messages that the code has, and has a line for every exit code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from kbackup.cli.common import notify
from kbackup.config.models import Config
from kbackup.jobs import common, replay
from kbackup.jobs.compare import job as compare
from kbackup.jobs.restore import job as restore
from kbackup.kafka import produce, schema_registry
from kbackup.kafka.control import cluster, errors
from kbackup.metadata.sources import Sources
from kbackup.store import reading
from kbackup.store.s3 import upload
from tests.project.docs.documents import ROOT

DOCS = ROOT / "infra" / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text("utf-8")
MESSAGES = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)


def _texts() -> Iterator[str]:
    """Yield every text in the code, with … for its variable parts."""
    for path in (ROOT / "kbackup").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


TEXTS = [re.sub("…+", "…", text) for text in _texts()]


def test_there_are_twenty_messages() -> None:
    assert len({*MESSAGES}) == len(MESSAGES) >= 20


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_in_the_code(message: str) -> None:
    """As it is there, or its beginning where the quote ends in …"""
    begins = message.removesuffix("…")
    assert any(text == message or (begins != message and text.startswith(begins)) for text in TEXTS)


def test_every_exit_code_has_a_line() -> None:
    codes = re.findall(r"^\| (\d+) \|", (DOCS / "exit-codes.md").read_text("utf-8"), re.MULTILINE)
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == codes


def test_waits_are_those_of_the_code() -> None:
    config, zookeeper = Config(), Sources.of({"zookeeper.connect": "zk"}).zookeeper
    assert zookeeper is not None
    assert zookeeper.connection_timeout == zookeeper.session_timeout
    waits = [
        config.stores["s3"].connect_timeout,
        config.stores["s3"].read_timeout,
        config.stores["s3"].max_attempts,
        reading._RESUMES,
        sum(upload._CONFLICT_WAITS),
        config.backup.lease_seconds,
        cluster._CONNECT_SECONDS,
        errors.REQUEST_SECONDS,
        config.backup.poll_timeout_seconds,
        replay.SILENCE,
        compare._TIMEOUT,
        errors.REQUEST_SECONDS,
        produce.OFFSETS_SECONDS,
        produce._TIMEOUT,
        produce.TRANSACTION_SECONDS,
        int(str(produce.TRANSACTIONAL["message.timeout.ms"])) / 1000,
        restore._MARKER_TIMEOUT,
        config.spark.task_attempts,
        common._LAST_PAUSE,
        schema_registry._SECONDS,
        notify._TIMEOUT,
        zookeeper.session_timeout,
    ]
    rows = re.findall(r"^\| .+ \| ([\d.]+) \|", PAGE.partition("## How long it waits")[2], re.MULTILINE)
    assert rows == [f"{each:g}" for each in waits]
