"""The addresses of controllers, and whether anybody lives there."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping

from kbackup.errors import UsageError
from kbackup.migrate.znodes import Sign
from kbackup.util.system import in_threads
from kbackup.util.text import words_of

_ADDRESS = re.compile(r".+:(\d{1,4}|[1-5]\d{4}|6[0-4]\d{3})")
_PROBE_SECONDS = 3.0  # s
_NOBODY_LISTENS = {errno.ECONNREFUSED}


def quorum_addresses(properties: Mapping[str, str]) -> set[str]:
    """Return the controllers' addresses in the properties of a broker or a controller."""
    addresses = set(words_of(properties.get("controller.quorum.bootstrap.servers", "")))
    for voter in words_of(properties.get("controller.quorum.voters", "")):
        _, _, address = voter.partition("@")  # ID@HOST:PORT
        if address:
            addresses.add(address)
    return addresses


def own_addresses(properties: Mapping[str, str]) -> set[str]:
    """Return the advertised addresses of a controller's own listeners, without listeners on every interface."""
    names = set(words_of(properties.get("controller.listener.names", "").upper()))
    listeners = properties.get("advertised.listeners") or properties.get("listeners", "")
    addresses = set[str]()
    for listener in words_of(listeners):
        name, _, address = listener.partition("://")
        host, _, _ = address.rpartition(":")
        # "Every interface" is nowhere that we could connect to: it would be this machine.
        is_every_interface = host in ("", "0.0.0.0", "[::]")  # noqa: S104 (compared)
        if name.upper() in names and not is_every_interface:
            addresses.add(address)
    return addresses


def logged_addresses(controllers: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield the addresses that controllers registered with, by a metadata log's RegisterControllerRecord."""
    for controller in controllers:
        endpoints = controller.get("endPoints")
        if not isinstance(endpoints, list | tuple):
            continue
        for endpoint in endpoints:
            yield f"{endpoint['host']}:{endpoint['port']}"


def probe(addresses: Collection[str], stopped: Collection[str]) -> dict[str, Sign]:
    """Try to connect to each address. `stopped` are the addresses that the user declares stopped. That counts only if
    nothing answers."""
    signs: dict[str, Sign] = {}
    for address, sign in zip(addresses, in_threads(_sign, addresses), strict=True):
        is_declared_stopped = sign == "silent" and address in stopped
        signs[address] = "stopped" if is_declared_stopped else sign
    return signs


def _sign(address: str) -> Sign:
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout=_PROBE_SECONDS):
            return "answers"
    except OSError as error:
        # Only a refusal comes from the machine itself. A time-out, or no route, may hide a controller that is alive.
        return "stopped" if error.errno in _NOBODY_LISTENS else "silent"


def split_address(address: str) -> tuple[str, int]:
    """Host and port; `UsageError` if it is no host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{address} is no address of a controller", "write host:port")
    return host.strip("[]"), int(port)


def probe_valid(addresses: Collection[str]) -> dict[str, Sign]:
    """Try to connect to each address. Nobody can live at a malformed one: it is silent."""
    signs: dict[str, Sign] = dict.fromkeys(addresses, "silent")
    valid = [address for address in addresses if _ADDRESS.fullmatch(address)]
    signs.update(probe(valid, ()))
    return signs
