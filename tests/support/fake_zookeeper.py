"""Znodes in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kbackup.zookeeper.session import Answers, ZnodeData


@dataclass
class FakeZooKeeper:
    """Maps paths to what stands there. `deleted` are the paths that were deleted, in order."""

    znodes: dict[str, object]
    ephemeral: frozenset[str] = frozenset()
    deleted: list[str] = field(default_factory=list)

    def get(self, paths: Collection[str]) -> Mapping[str, ZnodeData]:
        return {p: ZnodeData(_bytes(self.znodes[p]), 0, p in self.ephemeral) for p in paths if p in self.znodes}

    def read(self, paths: Collection[str], *, children: bool = False) -> Answers:
        if children:
            return Answers(children={path: self.children(path) for path in paths})
        return Answers(znodes=dict(self.get(paths)))

    def children(self, path: str) -> list[str]:
        below = (p[len(path) + 1 :] for p in self.znodes if p.startswith(f"{path}/"))
        return sorted({name.partition("/")[0] for name in below})

    def delete(self, path: str, version: int) -> bool:
        self.deleted.append(path)
        return self.znodes.pop(path, None) is not None


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()
