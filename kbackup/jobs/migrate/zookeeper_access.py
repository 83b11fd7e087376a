"""The connection to ZooKeeper that preflight, status and rollback use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kbackup.errors import UnreachableError
from kbackup.jobs.migrate.znodes import Znode
from kbackup.metadata.sources import ZooKeeperOptions


class ZnodeAccess:
    def __init__(self, client: Any) -> None:
        self._client = client

    def get(self, paths: Collection[str]) -> Mapping[str, Znode]:
        from kazoo.exceptions import NoNodeError

        asked = {path: self._client.get_async(path) for path in paths}
        found = {}
        for path, answer in asked.items():
            try:
                data, stat = answer.get()
            except NoNodeError:
                continue
            found[path] = Znode(data, stat.version, stat.ephemeralOwner != 0)
        return found

    def children(self, path: str) -> list[str]:
        from kazoo.exceptions import NoNodeError

        try:
            return sorted(self._client.get_children(path))
        except NoNodeError:
            return []

    def delete(self, path: str, version: int) -> bool:
        from kazoo.exceptions import BadVersionError, NoNodeError

        try:
            self._client.delete(path, version=version)
        except (BadVersionError, NoNodeError):
            return False
        return True


@contextmanager
def zookeeper_access(options: ZooKeeperOptions) -> Iterator[ZnodeAccess]:
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts=options.connect, timeout=options.session_timeout)
    try:
        client.start(timeout=options.connection_timeout)
    except KazooTimeoutError:
        raise UnreachableError(f"ZooKeeper at {options.servers} did not answer", "is it running?") from None
    try:
        yield ZnodeAccess(client)
    finally:
        client.stop()
        client.close()
