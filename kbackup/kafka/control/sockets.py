"""Streams to brokers: addresses are looked up, sockets set as librdkafka's `socket.*` say, and TLS is agreed on."""

from __future__ import annotations

import socket
import ssl

from confluent_kafka import KafkaError

from kbackup.kafka.control.deadline import Deadline
from kbackup.kafka.control.errors import NoConnectionError, TlsError
from kbackup.kafka.control.settings import Address, ConnectionSettings
from kbackup.kafka.control.tls import name_in_certificate

_HIGHEST_PORT = 65535


def open_stream(settings: ConnectionSettings, address: Address, deadline: Deadline) -> socket.socket:
    """Return a stream to the broker at `address`. Raise `NoConnectionError` if there is none."""
    try:
        stream = _open_socket(settings, address, deadline)
    except OSError as error:
        raise NoConnectionError(error.strerror or str(error)) from error
    if settings.tls is None:
        return stream
    try:
        deadline.limit(stream)
        return settings.tls.wrap_socket(stream, server_hostname=name_in_certificate(address[0]))
    except (ssl.SSLEOFError, ConnectionError) as error:
        stream.close()
        # So ends a listener without TLS: the client's words have a hint.
        raise TlsError("the connection ended in the TLS handshake") from error
    except ssl.SSLError as error:
        stream.close()
        raise TlsError(str(error)) from error
    except OSError as error:
        stream.close()
        raise NoConnectionError(f"TLS was not agreed on: {error.strerror or error}") from error
    except BaseException:
        stream.close()
        raise


def _open_socket(settings: ConnectionSettings, address: Address, deadline: Deadline) -> socket.socket:
    """Return a socket that is connected to the first address of the host that takes it."""
    found = _look_up(settings, address)
    failure: OSError = OSError("the host has no address")
    for number, (family, kind, protocol, _, target) in enumerate(found):
        stream = socket.socket(family, kind, protocol)
        try:
            _apply(settings, stream)
            # One address that swallows packets leaves time for the others.
            share = deadline.remaining() / (len(found) - number)
            deadline.within(share).limit(stream)
            stream.connect(target)
        except OSError as error:
            stream.close()
            failure = error
        except BaseException:
            stream.close()
            raise
        else:
            return stream
    raise failure


def _look_up(settings: ConnectionSettings, address: Address) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    """Return the addresses of a host. Brokers tell names of hosts in their metadata, absurd ones perhaps."""
    host, port = address
    if not host or not 0 < port <= _HIGHEST_PORT:
        raise NoConnectionError("this is no address of a broker", KafkaError._RESOLVE)
    try:
        found = socket.getaddrinfo(host, port, settings.family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise NoConnectionError(error.strerror or str(error), KafkaError._RESOLVE) from error
    except ValueError as error:
        # A label is too long, or has a byte 0.
        raise NoConnectionError("this is no name of a host", KafkaError._RESOLVE) from error
    return [*found]


def _apply(settings: ConnectionSettings, stream: socket.socket) -> None:
    for level, name, value in settings.socket_options:
        stream.setsockopt(level, name, value)
