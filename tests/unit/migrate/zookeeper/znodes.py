"""The znodes of a cluster of two Kafka 3.9 brokers, as they were read from ZooKeeper 3.8."""

from __future__ import annotations

import json
from pathlib import Path

from kbackup.migrate.zookeeper.session import Tree


def recorded() -> dict[str, bytes]:
    """By path."""
    texts = json.loads(Path(__file__).with_name("recorded.json").read_text())
    return {path: (text or "").encode() for path, text in texts.items()}


def with_znodes(changes: dict[str, bytes | str | None]) -> Tree:
    """Return the recorded znodes with changes; None removes a znode."""
    znodes = recorded() | {
        path: value.encode() if isinstance(value, str) else value or b"" for path, value in changes.items()
    }
    return Tree({path: data for path, data in znodes.items() if changes.get(path, "") is not None})
