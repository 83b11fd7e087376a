"""The warning about secrets that travel without TLS: for stores, registries, logins and webhooks alike."""

from __future__ import annotations

import ipaddress
import logging
import threading
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

_lock = threading.Lock()
_warned: set[tuple[str, str]] = set()
"""The secrets that were warned of, each with its host: a process warns once of each."""


def warn_of_plain_http(secret: str, url: str) -> None:
    """Log a warning if `secret` (a noun in messages, not its value) goes to `url` without TLS."""
    parts = urlsplit(url.strip())
    host = parts.hostname or ""
    # Nobody else listens on the loopback of this machine.
    if parts.scheme != "http" or is_loopback(host):
        return
    # Processes without logging of their own, such as Spark's workers, log nothing: their driver has warned.
    if not log.hasHandlers():
        return
    with _lock:
        if (secret, host) in _warned:
            return
        _warned.add((secret, host))
    log.warning("%s goes to %s over plain http, where others can read it: use https", secret, host)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's loopback."""
    return host == "localhost" or host.endswith(".localhost") or is_loopback_address(host)


def is_loopback_address(text: str) -> bool:
    """Return whether a text is an address of this machine's loopback; names are not looked up."""
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
