"""The znodes that hold a cluster's metadata, read at once: what the parsers work on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kbackup.zookeeper.session import Answers

ROOTS: Mapping[str, int] = {
    "/cluster/id": 0,
    "/controller": 0,
    "/controller_epoch": 0,
    "/migration": 0,
    "/latest_producer_id_block": 0,
    "/feature": 0,
    "/brokers/ids": 1,
    "/brokers/topics": 1,
    "/admin/delete_topics": 1,
    "/config/topics": 1,
    "/config/brokers": 1,
    "/config/clients": 1,
    "/config/ips": 1,
    "/config/users": 3,
    "/kafka-acl": 2,
    "/kafka-acl-extended": 3,
    "/delegation_token/tokens": 1,
}
"""The paths where metadata begins, and how many levels there are below each."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The contents of znodes by path, and the paths that our user may not read."""

    znodes: Mapping[str, bytes]
    denied: Collection[str] = field(default_factory=frozenset)

    def below(self, root: str, levels: int = 1) -> list[str]:
        """The paths exactly `levels` below `root`, in order; also those that are denied."""
        depth = root.count("/") + levels
        paths = {*self.znodes, *self.denied}
        return sorted(path for path in paths if path.startswith(f"{root}/") and path.count("/") == depth)


class Reader(Protocol):
    def read(self, paths: Collection[str], *, children: bool = False) -> Answers: ...


def read_tree(session: Reader) -> Tree:
    """Read `ROOTS` level by level: a request for each znode, all of a level under way at the same time."""
    znodes: dict[str, bytes] = {}
    denied: set[str] = set()
    level = dict(ROOTS)
    while level:
        answers = session.read(level)
        znodes |= {path: znode.data for path, znode in answers.znodes.items()}
        denied |= answers.denied
        parents = [path for path, levels in level.items() if levels and path in answers.znodes]
        names = session.read(parents, children=True)
        denied |= names.denied
        level = {
            f"{parent}/{name}": level[parent] - 1
            for parent, children in names.children.items()
            for name in children
        }
    return Tree(znodes, denied)


def last(path: str) -> str:
    """The name of a znode."""
    return path.rpartition("/")[2]
