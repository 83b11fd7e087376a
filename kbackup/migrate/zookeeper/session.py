"""A session with ZooKeeper, and reads of trees of znodes in few round trips."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kbackup.errors import UnreachableError, UsageError
from kbackup.metadata.sources import ZooKeeperOptions

_BATCH = 500
"""Requests under way at a time: beyond 1000, ZooKeeper stops reading from its clients."""


@dataclass(frozen=True, slots=True)
class ZnodeData:
    """`version` changes with every write. `ephemeral`: it goes with its owner's session."""

    data: bytes
    version: int
    ephemeral: bool


@dataclass(slots=True)
class Answers:
    """By path. `denied` are the paths that our user may not read; one that doesn't exist is nowhere."""

    znodes: dict[str, ZnodeData] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)


class ZooKeeperSession:
    """Paths are those below the chroot. Every method raises `UnreachableError` if the session ends or an answer
    takes longer than the session's timeout."""

    def __init__(self, client: Any, options: ZooKeeperOptions) -> None:
        self._client = client
        self._options = options

    def read(self, paths: Collection[str], *, children: bool = False) -> Answers:
        """Read the znodes at `paths`; with `children` the names below them instead."""
        from kazoo.exceptions import NoAuthError, NoNodeError

        ask = self._client.get_children_async if children else self._client.get_async
        answers, rest = Answers(), list(paths)
        while rest:
            batch, rest = rest[:_BATCH], rest[_BATCH:]
            # All of a batch is asked before the first answer is waited for: one round trip instead of hundreds.
            asked = [(path, ask(self._options.chroot + path)) for path in batch]
            for path, answer in asked:
                try:
                    value = self.wait(answer)
                except NoNodeError:
                    continue  # deleted since it was listed, or never there
                except NoAuthError:
                    answers.denied.add(path)
                    continue
                if children:
                    answers.children[path] = value
                else:
                    data, stat = value
                    answers.znodes[path] = ZnodeData(data or b"", stat.version, stat.ephemeralOwner != 0)
        return answers

    def get(self, paths: Collection[str]) -> Mapping[str, ZnodeData]:
        """Return the `paths` that exist; `UnreachableError` if our user may not read one."""
        answers = self.read(paths)
        self._check_allowed(answers)
        return answers.znodes

    def children(self, path: str) -> list[str]:
        """Return the names below a znode, in order; none if it doesn't exist."""
        answers = self.read([path], children=True)
        self._check_allowed(answers)
        return sorted(answers.children.get(path, []))

    def delete(self, path: str, version: int) -> bool:
        """Delete a znode if it has this version still; False if it was written since, or doesn't exist."""
        from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError

        try:
            self.wait(self._client.delete_async(self._options.chroot + path, version=version))
        except (BadVersionError, NoNodeError):
            return False
        except NoAuthError:
            raise self._denial("delete", path) from None
        return True

    def wait(self, answer: Any) -> Any:
        """Return kazoo's answer; its errors of single znodes are raised as they are."""
        from kazoo import exceptions as failures
        from kazoo.handlers.threading import KazooTimeoutError

        # kazoo waits for ever unless it is told how long.
        options = self._options
        try:
            return answer.get(timeout=options.session_timeout)
        except (failures.BadVersionError, failures.NoAuthError, failures.NoNodeError):
            raise
        except (failures.AuthFailedError, failures.SASLException):
            raise _login_refused(options) from None
        except (failures.KazooException, KazooTimeoutError) as error:
            raise UnreachableError(
                f"ZooKeeper at {options.servers} stopped answering: {type(error).__name__}",
                "check that a majority of its servers runs, then try again",
            ) from None

    def _check_allowed(self, answers: Answers) -> None:
        """Raise `UnreachableError` for the first znode that our user may not read."""
        if answers.denied:
            raise self._denial("read", min(answers.denied))

    def _denial(self, verb: str, path: str) -> UnreachableError:
        user = f"the user {self._options.user}" if self._options.user else "clients that don't log in"
        return UnreachableError(
            f"ZooKeeper doesn't let {user} {verb} znode {path}",
            "set zookeeper.sasl.username and zookeeper.sasl.password to the brokers' login",
        )


def _login_refused(options: ZooKeeperOptions) -> UnreachableError:
    return UnreachableError(
        f"ZooKeeper at {options.servers} refuses the login of the user {options.user}",
        "check zookeeper.sasl.username and zookeeper.sasl.password",
    )


# Connections to ZooKeeper by kazoo, which the extra `zookeeper` brings.


_AUTH_FAILED = "AUTH_FAILED"


class _LastWarning(logging.Handler):
    """Keeps the last reason that kazoo gave: its exceptions don't say why a connection failed."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(("Connection ", "Cannot resolve ", _AUTH_FAILED)):
            self.text = text


@contextmanager
def open_session(options: ZooKeeperOptions) -> Iterator[ZooKeeperSession]:
    """A session, as long as the context lasts. `UnreachableError` where nobody answers or the login is refused,
    `UsageError` where kazoo isn't installed or a file of `options` can't be used."""
    try:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import KazooTimeoutError

        if options.user:
            import puresasl  # noqa: F401  # kazoo logs in by it
    except ImportError as error:
        package = (error.name or "kazoo").partition(".")[0]
        hint = "install it: pip install 'kafka-kbackup[zookeeper]'"
        raise UsageError(f"ZooKeeper can't be read without the package {package}", hint) from None
    log = _LastWarning()
    logger = logging.Logger("kazoo", logging.WARNING)  # one of our own: kazoo's would write to stderr
    logger.addHandler(log)
    login = {"mechanism": "DIGEST-MD5", "username": options.user, "password": options.password}
    sasl_options = login if options.user else None
    client = KazooClient(
        hosts=options.servers,  # without the chroot: kazoo warns on stderr of one that doesn't exist
        timeout=options.session_timeout,
        logger=logger,
        sasl_options=sasl_options,
        **_tls(options),
    )
    try:
        try:
            client.start(timeout=options.connection_timeout)
        except KazooTimeoutError:
            if log.text.startswith(_AUTH_FAILED):
                raise _login_refused(options) from None
            why = f": {log.text}" if log.text else ""
            raise UnreachableError(
                f"ZooKeeper at {options.servers} did not answer within {options.connection_timeout:g} s{why}",
                "check zookeeper.connect, and zookeeper.ssl.client.enable where its port wants TLS",
            ) from None
        session = ZooKeeperSession(client, options)
        # A ZooKeeper server may answer with what it had a moment ago. After a sync, ours has all that was written to
        # others before. The sync also waits for the end of the login.
        session.wait(client.sync_async("/"))
        yield session
    finally:
        client.stop()
        client.close()


def _tls(options: ZooKeeperOptions) -> dict[str, Any]:
    """kazoo's arguments. The files are tried here: kazoo would try a broken one again and again."""
    if not options.tls:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted, own = options.certificates, options.own_certificate
    try:
        name, path = "zookeeper.ssl.truststore.location", trusted
        if trusted:
            context.load_verify_locations(trusted)
        name, path = "zookeeper.ssl.keystore.location", own
        if own:  # an empty password is one, without which OpenSSL would ask for it
            context.load_cert_chain(own, password=options.key_password)
    except OSError as error:
        why = error.strerror or "it is no PEM file that can be read"
        hint = "name a PEM file, and the password of its key"
        raise UsageError(f"{name}: can't use {path}: {why}", hint) from None
    arguments: dict[str, Any] = {"use_ssl": True, "check_hostname": True, "ca": trusted or None}
    if own:
        arguments |= {"certfile": own, "keyfile": own, "keyfile_password": options.key_password}
    return arguments


# The znodes that hold a cluster's metadata, read at once: what the parsers work on.


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
    "/delegation_token/tokens": 1,
    "/config/topics": 1,
    "/config/brokers": 1,
    "/config/clients": 1,
    "/config/ips": 1,
    "/config/users": 3,
    "/kafka-acl": 2,
    "/kafka-acl-extended": 3,
}
"""The paths where metadata begins, and how many levels there are below each."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The contents of znodes by path, and the paths that our user may not read."""

    znodes: Mapping[str, bytes]
    denied: Collection[str] = field(default_factory=frozenset)

    def below(self, root: str, levels: int = 1) -> list[str]:
        """Return the paths exactly `levels` below `root`, in order; also the denied ones."""
        depth = root.count("/") + levels
        found: list[str] = []
        for path in {*self.znodes, *self.denied}:
            if path.startswith(f"{root}/") and path.count("/") == depth:
                found.append(path)
        return sorted(found)


def read_tree(session: ZooKeeperSession) -> Tree:
    """Read `ROOTS` level by level: a request for each znode, all of a level under way at the same time."""
    znodes: dict[str, bytes] = {}
    denied: set[str] = set()
    level = dict(ROOTS)
    while level:
        answers = session.read(level)
        for path, znode in answers.znodes.items():
            znodes[path] = znode.data
        denied |= answers.denied
        # A znode that we may not read is not asked for its children: ZooKeeper has one right for both.
        parents = [path for path, levels in level.items() if levels and path in answers.znodes]
        names = session.read(parents, children=True)
        denied |= names.denied
        next_level: dict[str, int] = {}
        for parent, children in names.children.items():
            for name in children:
                next_level[f"{parent}/{name}"] = level[parent] - 1
        level = next_level
    return Tree(znodes, denied)


def last(path: str) -> str:
    """Return the name of a znode."""
    return path.rpartition("/")[2]
