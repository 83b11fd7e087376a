"""The znodes of a cluster of two Kafka 3.9 brokers, as they were read from ZooKeeper 3.8, and a session with them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from kbackup.zookeeper.session import Answers, Tree, ZnodeData


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


@dataclass
class FakeSession:
    """`denied` znodes may not be read, nor their children be listed."""

    znodes: dict[str, bytes]
    denied: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def read(self, paths: Collection[str], *, children: bool = False) -> Answers:
        answers = Answers()
        for path in paths:
            if path in self.denied:
                answers.denied.add(path)
            elif children:
                answers.children[path] = [
                    name for p in self.znodes if (name := p.removeprefix(f"{path}/")) != p and "/" not in name
                ]
            elif path in self.znodes:
                self.asked.append(path)
                answers.znodes[path] = ZnodeData(self.znodes[path], 0, False)
        return answers
