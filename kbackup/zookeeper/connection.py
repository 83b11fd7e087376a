"""Connections to ZooKeeper by kazoo, which the extra `zookeeper` brings."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kbackup.errors import UnreachableError, UsageError
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.zookeeper.session import Session, login_refused

EXTRA = "install it: pip install 'kafka-kbackup[zookeeper]'"
_AUTH_FAILED = "AUTH_FAILED"


@contextmanager
def open_session(options: ZooKeeperOptions) -> Iterator[Session]:
    """A session, as long as the context lasts. `UnreachableError` where nobody answers or the login is refused,
    `UsageError` where kazoo isn't installed or a file of `options` can't be used."""
    log = _LastWarning()
    client = _client(options, log)
    try:
        _start(client, options, log)
        session = Session(client, options)
        session.sync()  # it also waits for the end of the login
        yield session
    finally:
        client.stop()
        client.close()


def _client(options: ZooKeeperOptions, log: _LastWarning) -> Any:
    try:
        from kazoo.client import KazooClient

        if options.user:
            import puresasl  # noqa: F401  # kazoo logs in by it
    except ImportError as error:
        package = (error.name or "kazoo").partition(".")[0]
        raise UsageError(f"ZooKeeper can't be read without the package {package}", EXTRA) from None
    logger = logging.Logger("kazoo", logging.WARNING)  # one of our own: kazoo's would write to stderr
    logger.addHandler(log)
    return KazooClient(
        hosts=options.servers,  # without the chroot: kazoo warns on stderr of one that doesn't exist
        timeout=options.session_timeout,
        logger=logger,
        sasl_options=_login(options),
        **_tls(options),
    )


def _start(client: Any, options: ZooKeeperOptions, log: _LastWarning) -> None:
    from kazoo.handlers.threading import KazooTimeoutError

    try:
        client.start(timeout=options.connection_timeout)
    except KazooTimeoutError:
        if log.text.startswith(_AUTH_FAILED):
            raise login_refused(options) from None
        why = f": {log.text}" if log.text else ""
        raise UnreachableError(
            f"ZooKeeper at {options.servers} did not answer within {options.connection_timeout:g} s{why}",
            "check zookeeper.connect, and zookeeper.ssl.client.enable where its port wants TLS",
        ) from None


def _login(options: ZooKeeperOptions) -> dict[str, str] | None:
    if not options.user:
        return None
    return {"mechanism": "DIGEST-MD5", "username": options.user, "password": options.password}


def _tls(options: ZooKeeperOptions) -> dict[str, Any]:
    """kazoo's arguments. The files are tried here: kazoo would try a broken one again and again."""
    if not options.tls:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted, own = options.certificates, options.own_certificate
    try:
        if trusted:
            context.load_verify_locations(trusted)
    except OSError as error:
        raise _unusable("zookeeper.ssl.truststore.location", trusted, error) from None
    try:
        if own:  # an empty password is one, without which OpenSSL would ask for it
            context.load_cert_chain(own, password=options.key_password)
    except OSError as error:
        raise _unusable("zookeeper.ssl.keystore.location", own, error) from None
    arguments: dict[str, Any] = {"use_ssl": True, "check_hostname": True, "ca": trusted or None}
    if own:
        arguments |= {"certfile": own, "keyfile": own, "keyfile_password": options.key_password}
    return arguments


def _unusable(name: str, path: str, error: OSError) -> UsageError:
    why = error.strerror or "it is no PEM file that can be read"
    return UsageError(f"{name}: can't use {path}: {why}", "name a PEM file, and the password of its key")


class _LastWarning(logging.Handler):
    """Keeps the last reason that kazoo gave: its exceptions don't say why a connection failed."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(("Connection ", "Cannot resolve ", _AUTH_FAILED)):
            self.text = text
