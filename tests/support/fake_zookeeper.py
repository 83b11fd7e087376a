"""Znodes in memory."""

from __future__ import annotations

import json
from collections.abc import Collection

from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.zookeeper.session import Answers, ZnodeData, ZooKeeperSession


class FakeZooKeeper(ZooKeeperSession):
    """Maps paths to what stands there. `denied` znodes may not be read, nor their children be listed. `asked` are the
    paths of the znodes that were read, `deleted` those that were deleted, in order."""

    def __init__(
        self, znodes: dict[str, object], ephemeral: Collection[str] = (), denied: Collection[str] = ()
    ) -> None:
        super().__init__(None, ZooKeeperOptions(connect="zk:1"))
        self.znodes, self.ephemeral, self.denied = znodes, ephemeral, denied
        self.asked: list[str] = []
        self.deleted: list[str] = []

    def read(self, paths: Collection[str], *, children: bool = False) -> Answers:
        answers = Answers(denied={path for path in paths if path in self.denied})
        for path in paths:
            if path in self.denied:
                continue
            if children:
                below = {p[len(path) + 1 :].partition("/")[0] for p in self.znodes if p.startswith(f"{path}/")}
                answers.children[path] = sorted(below)
            elif path in self.znodes:
                self.asked.append(path)
                value = self.znodes[path]
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                answers.znodes[path] = ZnodeData(data, 0, path in self.ephemeral)
        return answers

    def delete(self, path: str, version: int) -> bool:
        self.deleted.append(path)
        return self.znodes.pop(path, None) is not None
