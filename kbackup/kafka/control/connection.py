"""A connection to one broker: TLS, a SASL login, and requests that follow one another without waiting for the answers.

kafka-python makes the messages. Its own connections are not used: they log requests, passwords and tokens of logins
included. Nothing that goes through here is logged.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from kbackup.kafka.control.deadline import Deadline
from kbackup.kafka.control.errors import (
    ConnectionEndedError,
    LoginError,
    NoConnectionError,
    NotABrokerError,
    RefusedRequestError,
    RequestError,
    TlsError,
)
from kbackup.kafka.control.login import Login, conversation
from kbackup.kafka.control.messages import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from kbackup.kafka.control.settings import Address, ConnectionSettings
from kbackup.kafka.control.sockets import open_stream
from kbackup.util.text import address_text

_SOFTWARE = {"client_software_name": "kbackup", "client_software_version": "1"}
_VERSIONS_WITH_FEATURES = 3  # brokers since 2.4; older ones answer by version 0
_SPENT = 0.8
"""The part of a login's lifetime after which a connection is not used any more: the broker would end it."""

_LENGTH_BYTES = 4  # before each answer; an answer begins with as many for its correlation id
_READ_AT_ONCE = 1 << 20  # bytes

_MOST_BYTES_UNANSWERED = 64 << 10
"""A broker reads no request while it writes an answer. If both sides wrote more than the sockets hold, neither would
ever read: so what waits for answers is small, or is one request alone."""


@dataclass
class PendingAnswer:
    """A request that was sent. `answer` has the bytes of the response once they are here, `error` why they won't be.
    `call` is the deadline of whoever asks."""

    request: Any
    correlation: int
    size: int
    call: Deadline
    answer: bytes | None = None
    error: NoConnectionError | None = None


def connect(settings: ConnectionSettings, address: Address, deadline: Deadline) -> BrokerConnection:
    """Return a connection to the broker at `address` that is logged in. Raise `NoConnectionError` if there is none."""
    where = address_text(*address)
    setup = deadline.within(settings.setup_seconds)
    try:
        stream = open_stream(settings, address, setup)
    except NoConnectionError as error:
        raise _named(error, where) from error
    broker = BrokerConnection(stream, settings, address)
    try:
        broker.learn_versions(setup.within(settings.versions_seconds))
        if settings.login is not None:
            broker.log_in(settings.login, setup)
    except NoConnectionError as error:
        broker.close()
        raise _named(error, where) from error
    except RefusedRequestError as refused:
        broker.close()
        # Of the requests of a new connection, a broker refuses only those of a login.
        raise LoginError(f"{where}: {refused.kafka_error().str()}") from refused
    except BaseException:
        broker.close()
        raise
    return broker


def _named(error: NoConnectionError, where: str) -> NoConnectionError:
    """Return the same error with the address in its words. Nothing was asked yet, so nothing can be half done."""
    words = f"{where}: {error}"
    # Exactly this class: `NotABrokerError` is one of its kinds, and stays what it is.
    if type(error) is ConnectionEndedError:
        return NoConnectionError(words)
    named: NoConnectionError = type(error)(words)
    named.code = error.code
    return named


class BrokerConnection:
    """Made by `connect`. `versions` has the oldest and the newest version of each request that the broker knows, by
    apiKey. `features` has the levels of finalized features by name; None if the broker returns none.

    `address` is where it leads to. Requests are answered in the order in which they were sent. A connection that has
    failed once is not used again.
    """

    def __init__(self, stream: socket.socket, settings: ConnectionSettings, address: Address) -> None:
        self._stream = stream
        self.address = address
        self._settings = settings
        self._sent = 0
        self._waiting: deque[PendingAnswer] = deque()
        self._answered = 0
        self._used_at = time.monotonic()
        self._spent_at: float | None = None
        self._failure: NoConnectionError | None = None
        self._closed = False
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] | None = None

    def close(self) -> None:
        self._closed = True
        self._stream.close()

    def usable(self) -> bool:
        """Return whether requests can be sent: brokers end connections that were idle for some minutes, and logins
        that have grown old."""
        if self._closed:
            return False
        # While answers are due, bytes are no sign of the end.
        if self._waiting:
            return True
        now = time.monotonic()
        if self._spent_at is not None and now >= self._spent_at:
            return False
        if now - self._used_at >= self._settings.idle_seconds:
            return False
        return not self._has_ended()

    def _has_ended(self) -> bool:
        """Return whether the broker has closed its side, while it owes us no answer."""
        if not answered_first([self], 0.0):
            return False
        try:
            self._stream.settimeout(0)
            self._stream.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            # What came is a message of TLS itself, a ticket for instance.
            return False
        except OSError:
            return True
        # It is the end of the stream, or bytes that nobody asked for: neither is a connection to go on with.
        return True

    def has_room(self, size: int) -> bool:
        """Return whether a request of `size` bytes can be sent before earlier ones are answered."""
        if not self._waiting:
            return True
        unanswered = sum(pending.size for pending in self._waiting)
        return unanswered + size <= _MOST_BYTES_UNANSWERED and len(self._waiting) < self._settings.most_unanswered

    def version_of(self, request: Any, newest: int | None = None) -> int:
        """Return the newest version of a request that both sides know, at most `newest`. Raise `RefusedRequestError`
        if the broker doesn't know the request."""
        low, high = self.versions.get(request.API_KEY, (0, -1))
        version = min(high, request.max_version if newest is None else newest)
        if version < max(low, request.min_version):
            raise RefusedRequestError(KafkaError.UNSUPPORTED_VERSION, "the brokers are too old for it")
        return version

    def require(self, request: Any, oldest: int) -> None:
        """Raise `RefusedRequestError` if the broker knows only versions of a request before `oldest`: a part of what
        it says would be lost."""
        _, high = self.versions.get(request.API_KEY, (0, -1))
        if high < oldest:
            raise RefusedRequestError(KafkaError.UNSUPPORTED_VERSION, "the brokers are too old for it")

    def encode(self, request: Any, newest: int | None = None) -> bytes:
        """Return the bytes of a request, in the newest version that both sides know, at most `newest`. The next call
        must be `send`."""
        request.with_header(correlation_id=self._sent + 1, client_id=self._settings.client_id)
        version = self.version_of(request, newest)
        return bytes(request.encode(version=version, header=True, framed=True))

    def send(self, request: Any, data: bytes, deadline: Deadline) -> PendingAnswer:
        """Send a request that `encode` has made bytes of. `receive` waits for its answer. Raise `NoConnectionError` if
        the connection has failed already, `ConnectionEndedError` if it does now."""
        if self._closed:
            # Certainly not sent: even a change may be asked for again.
            raise NoConnectionError(str(self._failure or "the connection is closed"))
        pending = PendingAnswer(request, self._sent + 1, len(data), deadline)
        try:
            self._write(data, deadline.within(self._settings.request_seconds))
        except OSError as error:
            raise self._failed(error) from error
        except BaseException:
            # A part of the request may be sent: nothing can follow it. An interrupt comes here too.
            self.close()
            raise
        self._sent += 1
        self._waiting.append(pending)
        return pending

    def _write(self, data: bytes, deadline: Deadline) -> None:
        # Not `sendall`, which gives each record of TLS the whole time anew.
        unsent = memoryview(data)
        while unsent:
            deadline.limit(self._stream)
            count = self._stream.send(unsent)
            unsent = unsent[count:]

    def receive(self, pending: PendingAnswer) -> Any:
        """Return the response to a request that was sent. Raise `ConnectionEndedError` if none comes in time.

        A broker answers one request after another: each may take `request_seconds` from when we wait for it."""
        while pending.answer is None and pending.error is None:
            self._take_answer(pending.call.within(self._settings.request_seconds))
        if pending.error is not None:
            raise pending.error
        data = pending.answer
        # The bytes are not kept with the request: an answer may have many megabytes.
        pending.answer = b""
        name = type(pending.request).__name__
        try:
            return pending.request.header.get_response_class().decode(data, header=True)
        except Exception as error:
            # Whatever kafka-python stumbles over in bytes that are no such response. The next answer can be found all
            # the same: each comes with its length.
            raise NotABrokerError(f"the answer to {name} can't be read") from error

    def give_up(self) -> None:
        """Wait no longer: what was sent is not answered in time."""
        self._failed(TimeoutError())

    def ask(self, request: Any, newest: int | None = None, deadline: Deadline | None = None) -> Any:
        """Send one request and return its response. Raise `RefusedRequestError` if the response holds an error for the
        whole."""
        within = deadline or Deadline(self._settings.request_seconds)
        data = self.encode(request, newest)
        response = self.receive(self.send(request, data, within))
        refuse_whole(response)
        return response

    def learn_versions(self, deadline: Deadline) -> None:
        """Ask the broker for the versions that it supports: the first request of a connection."""
        response = self._ask_versions(ApiVersionsRequest(**_SOFTWARE), _VERSIONS_WITH_FEATURES, deadline)
        # This request alone is answered, by version 0, also if the broker doesn't know the version that was sent.
        if response.error_code == KafkaError.UNSUPPORTED_VERSION:
            response = self._ask_versions(ApiVersionsRequest(), 0, deadline)
        if response.error_code:
            reason = KafkaError(response.error_code).str()
            raise NoConnectionError(f"it doesn't say which requests it knows: {reason}")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        # The epoch counts from 0; a broker without features says -1.
        if response.finalized_features_epoch >= 0:
            features = response.finalized_features or ()
            self.features = {feature.name: feature.max_version_level for feature in features}

    def _ask_versions(self, request: Any, version: int, deadline: Deadline) -> Any:
        # Not by `encode`, which looks for a version among those that this request is to find out.
        request.with_header(correlation_id=self._sent + 1, client_id=self._settings.client_id)
        data = bytes(request.encode(version=version, header=True, framed=True))
        return self.receive(self.send(request, data, deadline))

    def log_in(self, login: Login, deadline: Deadline) -> None:
        """Log in, as `conversation` says it. Raise `LoginError` or `RefusedRequestError` if the broker doesn't let us
        in."""
        try:
            self._log_in(login, deadline)
        except RequestError:
            # The token may be why, revoked for instance: the next login takes a fresh one.
            if login.token is not None:
                login.token.forget()
            raise

    def _log_in(self, login: Login, deadline: Deadline) -> None:
        # The lifetime counts from here, not from when the answer has come: so we are never later than the broker.
        began = time.monotonic()
        self._choose_mechanism(login.mechanism, deadline)
        talk = conversation(login)
        message = next(talk)
        while True:
            request = SaslAuthenticateRequest(auth_bytes=message)
            answer = self.ask(request, deadline=deadline)
            # Version 0 of the answer has no lifetime; where logins have no end, it is 0.
            lifetime = getattr(answer, "session_lifetime_ms", 0)
            if lifetime:
                self._spent_at = began + lifetime / 1000 * _SPENT
            try:
                message = talk.send(answer.auth_bytes or b"")
            except StopIteration:
                break
            except ValueError:
                # Text, numbers or base64 that are none. What the broker sent is not shown: it belongs to a login.
                raise LoginError(f"the broker's answer to a {login.mechanism} login can't be read") from None

    def _choose_mechanism(self, mechanism: str, deadline: Deadline) -> None:
        request = SaslHandshakeRequest(mechanism=mechanism)
        data = self.encode(request)
        # Not by `ask`: the refusal names the mechanisms that the broker takes.
        response = self.receive(self.send(request, data, deadline))
        if response.error_code == KafkaError.UNSUPPORTED_SASL_MECHANISM:
            others = ", ".join(response.mechanisms or ())
            raise LoginError(f"the broker takes no login by {mechanism}, only by {others}")
        refuse_whole(response)

    def _take_answer(self, deadline: Deadline) -> None:
        """Read one response: that to the request which has waited longest."""
        try:
            data = self._read_answer(deadline)
        except OSError as error:
            raise self._failed(error) from error
        except NoConnectionError:
            raise
        except BaseException:
            # A part of the answer is read: the beginning of the next one can't be found any more.
            self.close()
            raise
        first = self._waiting[0]
        (correlation,) = struct.unpack(">i", data[:4])
        if correlation != first.correlation:
            raise self._failed_as(NotABrokerError("it answers another request than it was sent"))
        self._waiting.popleft()
        self._answered += 1
        self._used_at = time.monotonic()
        first.answer = bytes(data)

    def _read_answer(self, deadline: Deadline) -> bytearray:
        (size,) = struct.unpack(">i", self._read(_LENGTH_BYTES, deadline))
        # What is no broker has its own bytes here: "HTTP", or the alert of a listener with TLS.
        if not _LENGTH_BYTES <= size <= self._settings.largest_answer:
            raise self._failed_as(NotABrokerError(f"it answers with {size} bytes"))
        return self._read(size, deadline)

    def _read(self, size: int, deadline: Deadline) -> bytearray:
        # The buffer grows with what comes: a size alone makes us take no memory.
        data = bytearray()
        while len(data) < size:
            # Set anew for each part: a broker that sends a byte now and then keeps nobody waiting beyond the deadline.
            deadline.limit(self._stream)
            part = self._stream.recv(min(size - len(data), _READ_AT_ONCE))
            if not part:
                raise self._failed_as(self._closed_by_broker())
            data += part
        return data

    def _closed_by_broker(self) -> NoConnectionError:
        """Return the error of a connection that the broker has closed. One that closes it at the first real request
        expected another protocol, or is about to stop."""
        if self._answered > 1:
            return ConnectionEndedError("the broker closed the connection")
        if not self._answered and self._settings.tls is not None:
            # By TLS 1.3, the broker looks at our certificate when the handshake is over for us.
            return TlsError("the broker closed the connection after the handshake of SSL")
        return NotABrokerError("it closed the connection: is security.protocol right?")

    def _failed(self, error: OSError) -> NoConnectionError:
        """Close the connection over an error of its stream, and return our own error for it."""
        return self._failed_as(self._explained(error))

    def _explained(self, error: OSError) -> NoConnectionError:
        if isinstance(error, TimeoutError):
            # A broker answers its first request, about versions, at once. What stays silent then is none.
            if not self._answered:
                return NotABrokerError("no answer came in time")
            return ConnectionEndedError("no answer came in time", KafkaError._TIMED_OUT)
        # The end of a stream without TLS's farewell is an end, not an error of TLS.
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return TlsError(str(error))
        if isinstance(error, ConnectionError | ssl.SSLEOFError) and self._answered <= 1:
            return self._closed_by_broker()
        return ConnectionEndedError(f"the connection ended: {error.strerror or error}")

    def _failed_as(self, error: NoConnectionError) -> NoConnectionError:
        """Close the connection, so that every request that waits on it fails with `error`."""
        self._failure = error
        self.close()
        for pending in self._waiting:
            pending.error = error
        self._waiting.clear()
        return error

    def has_bytes(self) -> bool:
        """Return whether there is something to read that the socket doesn't show: bytes that TLS has taken from it
        already, or an error."""
        if self._closed:
            return True
        return isinstance(self._stream, ssl.SSLSocket) and self._stream.pending() > 0

    def fileno(self) -> int:
        return self._stream.fileno()


def answered_first(brokers: Sequence[BrokerConnection], seconds: float) -> list[BrokerConnection]:
    """Wait until one of the connections has something to read, and return all that have: none after `seconds`."""
    # Bytes that TLS has taken from the socket already would be waited for in vain.
    found = [broker for broker in brokers if broker.has_bytes()]
    if found:
        return found
    # Not `select`, which knows no descriptor above 1023: a process may have more files and connections open.
    with selectors.DefaultSelector() as selector:
        for broker in brokers:
            selector.register(broker, selectors.EVENT_READ)
        ready = {key.fd for key, _ in selector.select(seconds)}
    return [broker for broker in brokers if broker.fileno() in ready]


def refuse_whole(response: Any) -> None:
    """Raise `RefusedRequestError` if a response holds an error for the whole."""
    code = getattr(response, "error_code", 0)
    if code:
        raise RefusedRequestError(code, getattr(response, "error_message", None) or "")
