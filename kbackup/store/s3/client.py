"""The SDK's clients, one a process for each set of options: making one takes 0.1 s of CPU, and every task gets
a store of its own."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.utils import determine_content_length

from kbackup import __version__
from kbackup.errors import UnreachableError
from kbackup.store.options import S3Options
from kbackup.store.s3.errors import never_sent

if TYPE_CHECKING:
    from botocore.signers import RequestSigner
    from mypy_boto3_s3 import S3Client

_CONNECTIONS = 32
_SMALL = 256 << 10
_MAYBE_DONE = {500, 502, 504}
_Environment = tuple[tuple[str, str], ...]

attempts = threading.local()
"""`lost`: whether an attempt of this thread's last request may have taken effect unheard. `signed`: this thread's last
read of an object (`SignedRequest`)."""


class SignedRequest(NamedTuple):
    """A request as the SDK made it, before its signature."""

    url: str
    headers: Mapping[str, str]
    context: Mapping[str, Any]
    signer: RequestSigner


class _Clients:
    """Made under a lock, so that threads that start together make one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[S3Options, _Environment], S3Client] = {}

    def get(self, options: S3Options) -> S3Client:
        # what the options leave open, the SDK takes from the environment
        environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
        with self._lock:
            key = options, environment
            if key not in self._made:
                self._made[key] = _make_client(options)
            return self._made[key]


_clients = _Clients()


def _forget() -> None:
    global _clients  # the parent's lock may be held by a thread that is not here
    _clients = _Clients()


os.register_at_fork(after_in_child=_forget)


def client_of(options: S3Options) -> S3Client:
    """Return this process's client, which is thread-safe."""
    return _clients.get(options)


def _note_attempt(response: Any, caught_exception: Exception | None, **_: Any) -> None:
    """Remember a request that may have taken effect without an answer. Called after every attempt, in the thread of the
    request."""
    if caught_exception is not None:
        lost = not never_sent(caught_exception)
    else:
        lost = response is not None and response[0].status_code in _MAYBE_DONE
    attempts.lost = getattr(attempts, "lost", False) or lost


def _note_signed(request: Any, request_signer: RequestSigner, **_: Any) -> None:
    """Called before every attempt is signed, in the thread of the request."""
    attempts.signed = SignedRequest(request.url, dict(request.headers), dict(request.context), request_signer)


def _make_client(options: S3Options) -> S3Client:
    path_style = bool(options.endpoint_url) if options.path_style is None else options.path_style
    session = _session(options)
    config = Config(
        connect_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        max_pool_connections=max(_CONNECTIONS, 2 * options.parts_in_flight),
        retries={"mode": "standard", "total_max_attempts": options.max_attempts},
        s3={"addressing_style": "path" if path_style else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
        user_agent=f"kbackup/{__version__}",
    )
    client: S3Client = session.client(
        "s3",
        endpoint_url=options.endpoint_url or None,
        region_name=session.region_name or ("us-east-1" if options.endpoint_url else None),
        verify=options.ca_bundle or None,
        config=config,
    )
    if client.meta.endpoint_url.startswith("https:") or options.checksum != "none":
        # TLS, or the body's checksum in a signed header, is enough. A SHA-256 of every body on top took as much
        # CPU as all the rest of an upload (3.3 and 1.8 ms a MiB, pairs in one run), holding Python's lock
        client.meta.config.s3["payload_signing_enabled"] = False  # type: ignore[attr-defined]
    client.meta.events.register("needs-retry.s3", _note_attempt)
    client.meta.events.register_last("before-call.s3", _send_at_once)
    client.meta.events.register_last("before-sign.s3.GetObject", _note_signed)
    if options.checksum == "none":
        client.meta.events.register("before-sign.s3.DeleteObjects", _add_content_md5)
    return client


def with_credentials(options: S3Options) -> S3Options:
    """Return the options with the present credentials of their profile, for clients of others, which know no profiles.
    `UnreachableError` where the profile has none."""
    credentials = _session(options).get_credentials()
    if credentials is None:
        raise UnreachableError(
            f"profile {options.profile} has no credentials", "see aws configure list --profile"
        )
    now = credentials.get_frozen_credentials()
    return replace(
        options,
        profile="",
        access_key_id=now.access_key or "",
        secret_access_key=now.secret_key or "",
        session_token=now.token or "",
    )


def _session(options: S3Options) -> boto3.Session:
    return boto3.Session(
        aws_access_key_id=options.access_key_id or None,
        aws_secret_access_key=options.secret_access_key or None,
        aws_session_token=options.session_token or None,
        region_name=options.region or None,
        profile_name=options.profile or None,
    )


def _send_at_once(params: dict[str, Any], **_: Any) -> None:
    """Take `Expect` out of the request of a small body: the answer to `Expect` costs a round trip."""
    if "Expect" in params["headers"] and (determine_content_length(params["body"]) or 0) < _SMALL:
        del params["headers"]["Expect"]


def _add_content_md5(request: Any, **_: Any) -> None:
    """Add the checksum that stores without newer checksums require for deletes."""
    digest = hashlib.md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()
