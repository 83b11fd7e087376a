"""The addresses of controllers, and whether anybody lives there."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from kbackup.errors import UsageError
from kbackup.jobs.migrate.rollback.situation import Sign

_TIMEOUT = 3.0  # s
_AT_ONCE = 16
_NOBODY_LISTENS = {errno.ECONNREFUSED}


def quorum_addresses(properties: Mapping[str, str]) -> set[str]:
    """The controllers' addresses in the properties of a broker or a controller."""
    servers = _words(properties.get("controller.quorum.bootstrap.servers", ""))
    voters = (voter.partition("@")[2] for voter in _words(properties.get("controller.quorum.voters", "")))
    return {*servers, *(voter for voter in voters if voter)}


def own_addresses(properties: Mapping[str, str]) -> set[str]:
    """Return the advertised addresses of a controller's own listeners, without listeners on every interface."""
    names = {name.upper() for name in _words(properties.get("controller.listener.names", ""))}
    text = properties.get("advertised.listeners") or properties.get("listeners", "")
    pairs = (listener.partition("://") for listener in _words(text))
    return {
        address
        for name, _, address in pairs
        if name.upper() in names and address.rpartition(":")[0] not in ("", "0.0.0.0", "[::]")  # noqa: S104 (compared)
    }


def logged_addresses(controllers: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield the addresses that controllers registered with, by a metadata log's RegisterControllerRecord."""
    for controller in controllers:
        endpoints = controller.get("endPoints")
        for endpoint in endpoints if isinstance(endpoints, list | tuple) else ():
            yield f"{endpoint['host']}:{endpoint['port']}"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def probe(addresses: Collection[str], stopped: Collection[str]) -> dict[str, Sign]:
    """Try to connect to each address. `stopped` are those that the user says are stopped: it counts where nothing
    comes back, never where somebody answers."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        signs = dict(zip(addresses, pool.map(_sign, addresses), strict=True))
    return {
        address: "stopped" if sign == "silent" and address in stopped else sign
        for address, sign in signs.items()
    }


def _sign(address: str) -> Sign:
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT):
            return "answers"
    except OSError as error:
        return "stopped" if error.errno in _NOBODY_LISTENS else "silent"


def split_address(address: str) -> tuple[str, int]:
    """Host and port; `UsageError` where it is no host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{address} is no address of a controller", "write host:port")
    return host.strip("[]"), int(port)
