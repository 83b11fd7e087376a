"""A session with ZooKeeper, on a connection that `connection` makes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbackup.errors import UnreachableError
from kbackup.metadata.sources import ZooKeeperOptions

_BATCH = 500
"""Requests under way at a time: beyond 1000, ZooKeeper stops reading from its clients."""


@dataclass(frozen=True, slots=True)
class Znode:
    """`version` changes with every write. `ephemeral`: it goes with its owner's session."""

    data: bytes
    version: int
    ephemeral: bool


@dataclass(slots=True)
class Answers:
    """By path. `denied` are the paths that our user may not read; one that doesn't exist is nowhere."""

    znodes: dict[str, Znode] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)


class Session:
    """Paths are those below the chroot. Every method raises `UnreachableError` where the session ends or an answer
    takes longer than the session's timeout."""

    def __init__(self, client: Any, options: ZooKeeperOptions) -> None:
        self._client = client
        self._options = options

    def read(self, paths: Collection[str], *, children: bool = False) -> Answers:
        """Read the znodes at `paths`; with `children` the names below them instead."""
        ask = self._client.get_children_async if children else self._client.get_async
        answers, rest = Answers(), list(paths)
        while rest:
            batch, rest = rest[:_BATCH], rest[_BATCH:]
            asked = {path: ask(self._options.chroot + path) for path in batch}
            for path, answer in asked.items():
                self._take(path, answer, answers)
        return answers

    def get(self, paths: Collection[str]) -> Mapping[str, Znode]:
        """Return those of `paths` that exist; `UnreachableError` where our user may not read one."""
        return self._allowed(self.read(paths)).znodes

    def children(self, path: str) -> list[str]:
        """Return the names below a znode, in order; none where it doesn't exist."""
        return sorted(self._allowed(self.read([path], children=True)).children.get(path, []))

    def delete(self, path: str, version: int) -> bool:
        """Delete a znode if it has this version still; False where it was written since, or doesn't exist."""
        from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError

        try:
            self._wait(self._client.delete_async(self._options.chroot + path, version=version))
        except (BadVersionError, NoNodeError):
            return False
        except NoAuthError:
            raise self._denial("delete", path) from None
        return True

    def sync(self) -> None:
        """Wait until our server has all that was written to others before."""
        self._wait(self._client.sync_async("/"))

    def _take(self, path: str, answer: Any, answers: Answers) -> None:
        from kazoo.exceptions import NoAuthError, NoNodeError

        try:
            value = self._wait(answer)
        except NoNodeError:
            return
        except NoAuthError:
            answers.denied.add(path)
            return
        if isinstance(value, list):
            answers.children[path] = value
        else:
            data, stat = value
            answers.znodes[path] = Znode(data or b"", stat.version, stat.ephemeralOwner != 0)

    def _wait(self, answer: Any) -> Any:
        from kazoo import exceptions as failures
        from kazoo.handlers.threading import KazooTimeoutError

        options = self._options
        try:
            return answer.get(timeout=options.session_timeout)
        except (failures.BadVersionError, failures.NoAuthError, failures.NoNodeError):
            raise
        except (failures.AuthFailedError, failures.SASLException):
            raise login_refused(options) from None
        except (failures.KazooException, KazooTimeoutError) as error:
            raise UnreachableError(
                f"ZooKeeper at {options.servers} stopped answering: {type(error).__name__}",
                "check that a majority of its servers runs, then try again",
            ) from None

    def _allowed(self, answers: Answers) -> Answers:
        if answers.denied:
            raise self._denial("read", min(answers.denied))
        return answers

    def _denial(self, verb: str, path: str) -> UnreachableError:
        user = f"the user {self._options.user}" if self._options.user else "clients that don't log in"
        return UnreachableError(
            f"ZooKeeper doesn't let {user} {verb} znode {path}",
            "set zookeeper.sasl.username and zookeeper.sasl.password to the brokers' login",
        )


def login_refused(options: ZooKeeperOptions) -> UnreachableError:
    return UnreachableError(
        f"ZooKeeper at {options.servers} refuses the login of the user {options.user}",
        "check zookeeper.sasl.username and zookeeper.sasl.password",
    )
