"""Requests to one bucket by Google's JSON API: login by google-auth, attempts, and errors in the store's words."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlencode, urljoin, urlsplit

import google.auth.credentials
import google.auth.transport.requests
import requests
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError, SSLError
from urllib3.exceptions import HTTPError, NewConnectionError, ProxyError

from kbackup import __version__, errors
from kbackup.store.base import PORTS, SHORTER, Address, KeyClasses, address_of_bucket, check_key, key_within
from kbackup.store.bucket import strange_answers
from kbackup.store.gcs import GcsOptions
from kbackup.store.parts import Body
from kbackup.util.plain_http import warn_of_plain_http

# Why requests are not sent by google-cloud-storage:
#
# - It can't tell whether an attempt without an answer may have taken effect.
# - It brings nine more packages, and its import takes 0.1 s of CPU more.
# - It takes more of this process's CPU. Against fake-gcs-server, in turns, the least of four rounds, for what is below
#   and for google-cloud-storage 3.17: 300 puts of 2 kB 0.22 and 0.28 s, 300 gets 0.21 and 0.27 s, reading 64 MiB 0.01
#   and 0.06 s. An upload of 64 MiB in four parts took 2.1 and 3.9 s.

sdk: Any = google.auth  # half of its modules have types
_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_CONNECTIONS = 32
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 16.0  # s
_AGAIN = {408, 429, 500, 502, 503, 504}
_MAYBE_DONE = _AGAIN - {429}

_NETWORK = "check the endpoint, the network and whether the store is up"
_LOGIN = "run gcloud auth application-default login, or set gcs.credentials_file or GOOGLE_APPLICATION_CREDENTIALS"
_REFUSED = {
    "iat and exp": "set this machine's clock",
    "Invalid JWT Signature": "make a new key of the service account: Google does not know this one any more",
    "expired or revoked": "run gcloud auth application-default login again: that login has ended",
}
"""Hints by words in the login's text."""
_RETAINED = "wait for the end of its retention: the object or the bucket keeps it"
_BILLING = "check the billing account of the bucket's project"
_PERMISSION = "give the account the permission that the message names, on the bucket"
_NO_RETENTION = "make a bucket with object retention, or retain nothing"
_PAYER = "set gcs.project to the project that pays: the bucket's owner does not"
_DAMAGED = "run again, and check memory and network: bytes were damaged on their way"
_TOO_MANY = "run again later, or with fewer tasks: the store gets too many requests"
_BROKEN = "run again later: the store is overloaded or broken"


class AnswerMeaning(NamedTuple):
    """The error for answers with one of `statuses` and `word` in their text, '' for any text."""

    statuses: set[int]
    word: str
    error: type[errors.KbackupError]
    hint: str


# The first that fits counts: the general meaning of a status comes after those of a word.
_MEANINGS = (
    AnswerMeaning({401}, "", errors.DeniedError, _LOGIN),
    AnswerMeaning({403}, "retention", errors.DeniedError, _RETAINED),
    AnswerMeaning({403}, "hold", errors.DeniedError, "release the hold on the object"),
    AnswerMeaning({403}, "billing", errors.DeniedError, _BILLING),
    AnswerMeaning({403}, "", errors.DeniedError, _PERMISSION),
    AnswerMeaning({416}, "", errors.CorruptError, SHORTER),
    AnswerMeaning({400, 409, 412}, "retention", errors.UsageError, _NO_RETENTION),
    AnswerMeaning({412}, "", errors.PreconditionError, ""),
    AnswerMeaning({400}, "project", errors.DeniedError, _PAYER),
    # Nothing was stored: what is there is not damaged.
    AnswerMeaning({400}, "calculated", errors.StoreError, _DAMAGED),
    AnswerMeaning({429, 503}, "", errors.UnreachableError, _TOO_MANY),
    AnswerMeaning(_AGAIN, "", errors.UnreachableError, _BROKEN),
)


@cache
def _session_of(options: GcsOptions, anonymous: bool, process: int) -> tuple[Any, Any]:
    """Return a process's session for these options, which threads share, and what asks for new tokens."""
    plain = requests.Session()
    plain.verify = options.ca_bundle or True
    login: Any = sdk.transport.requests.Request(plain)
    credentials: Any = sdk.credentials.AnonymousCredentials()
    if not anonymous:
        with warnings.catch_warnings():
            # google-auth warns of files that strangers may have made, and of gcloud's login without a quota project.
            warnings.simplefilter("ignore")
            if options.credentials_file:
                credentials = sdk.load_credentials_from_file(options.credentials_file, _SCOPES)[0]
            else:
                credentials = sdk.default(_SCOPES, login)[0]
    # `once` asks for a new token itself: the library would then send only what is left of a body that it has read.
    session = sdk.transport.requests.AuthorizedSession(credentials, refresh_status_codes=(), auth_request=login)
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    session.auth = _no_login
    session.headers.update({"User-Agent": f"kbackup/{__version__}", "Accept-Encoding": "identity"})
    return session, login


def _no_login(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add no login of requests' own: without this, every request reads ~/.netrc."""
    return request


class CutError(requests.RequestException):
    """An answer of success that is not whole."""


_PASSING = (requests.ConnectionError, requests.Timeout, ChunkedEncodingError, CutError, HTTPError, TransportError)


def _is_whole(answer: requests.Response, needs: Sequence[str] | None) -> bool:
    """Return whether an answer of success has all headers of `needs`, or a document if `needs` is None."""
    # Python's HTTP client takes the end of a connection for the end of the headers.
    if needs is not None:
        return all(name in answer.headers for name in needs)
    with suppress(ValueError, RecursionError):
        return isinstance(answer.json(), dict)
    return False


class GcsBucket:
    """One bucket and prefix. Picklable."""

    def __init__(self, name: str, prefix: str, options: GcsOptions, key_class: KeyClasses) -> None:
        self.options, self.key_class = options, key_class
        self.prefix = f"{check_key(prefix)}/" if prefix else ""
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        if emulator and "://" not in emulator:
            emulator = f"http://{emulator}"
        endpoint = options.endpoint_url or emulator or "https://storage.googleapis.com"
        self._endpoint = endpoint.rstrip("/")
        is_emulator = self._endpoint.startswith("http://") if options.endpoint_url else emulator != ""
        self._anonymous = is_emulator and not options.credentials_file
        if not self._anonymous:
            warn_of_plain_http("the token of gcs", self._endpoint)
        self._seen = False
        self.address: Address = address_of_bucket(self._endpoint, name, self.prefix)
        self.itself = f"/storage/v1/b/{quote(name, safe='')}"
        self.objects = f"{self.itself}/o"
        self.uploads = f"/upload{self.objects}"
        self._url = f"gs://{name}/{self.prefix}"

    def path(self, key: str) -> str:
        return f"{self.objects}/{quote(key_within(self.prefix, key), safe='')}"

    def describe(self, key: str = "") -> str:
        return f"{self._url}{key}".rstrip("/")

    def session_of(self, key: str, location: str) -> str:
        """Return the address of an upload session that the store names for the object `key`. `StoreError` for one at
        another server: it would get the login, and the object's bytes."""
        with strange_answers(self.describe(key)):
            address = urljoin(f"{self._endpoint}/", location)
            named, own = urlsplit(address), urlsplit(self._endpoint)
            is_same = server_of(named) == server_of(own)
            is_tls = named.scheme == own.scheme == "https"
            # Google's hosts name sessions at each other.
            is_of_google = is_tls and _is_of_google(named) and _is_of_google(own)
        if (is_same or is_of_google) and named.username is None:
            return address
        raise errors.StoreError(
            f"{self.describe(key)}: the store names an upload session at another server, {named.hostname}",
            "check gcs.endpoint_url and what is before the store: nothing was sent there",
        )

    def document(self, key: str) -> dict[str, Any]:
        """Return what a new object `key` has besides its bytes."""
        document: dict[str, Any] = {"name": key_within(self.prefix, key), "contentType": "application/octet-stream"}
        if not self.key_class(key).replaced:
            if self.options.storage_class:
                document["storageClass"] = self.options.storage_class
            if self.options.retention_mode:
                until = datetime.now(UTC) + timedelta(days=self.options.retention_days)
                document["retention"] = {"mode": self.options.retention_mode, "retainUntilTime": until.isoformat()}
        return document

    def ask(
        self, key: str, method: str, path: str, params: dict[str, str] | None = None, **more: Any
    ) -> requests.Response:
        """Send a request about the object `key`, again after failures that may pass; return the answer of success.
        Arguments as of `once`, and `writing` as of `retry`."""
        writing = more.pop("writing", False)
        try:
            return self.retry(key, partial(self.once, method, path, params, **more), writing=writing)
        except errors.NotFoundError:
            # Google answers the same if the bucket is missing. To a listing it answers by the bucket's name.
            if not self._seen:
                listing = partial(self.once, "GET", self.objects, {"prefix": self.prefix, "maxResults": "1"})
                self.retry("", listing)
            raise

    def once(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        needs: Sequence[str] | None = None,
        data: Body | None = None,
        skip: int = 0,
        **more: Any,
    ) -> requests.Response:
        """Send a request to `path`, or to an address that Google gave, with `data` but for its first `skip` bytes, and
        return any answer. One of success has the headers `needs`, or a document if None, else it was cut."""
        session, login = _session_of(self.options, self._anonymous, os.getpid())
        if data is not None:
            data.seek(skip)
        if "://" not in path:
            given = {"userProject": self.options.project, **(params or {})}
            query = {name: value for name, value in given.items() if value}
            path = f"{self._endpoint}{path}?{urlencode(query)}"
        more["timeout"] = self.options.connect_timeout, self.options.read_timeout
        more["verify"] = self.options.ca_bundle or None
        answer: requests.Response = session.request(method, path, data, allow_redirects=False, **more)
        if answer.status_code < 300 and not _is_whole(answer, needs):
            answer.close()
            raise CutError("the answer was cut")
        if answer.status_code == 401 and not self._anonymous:
            session.credentials.refresh(login)
        return answer

    def retry(
        self, key: str, attempt: Callable[[], requests.Response], *, writing: bool = False, accept: Sequence[int] = ()
    ) -> requests.Response:
        """Return the first answer of success, or with a status of `accept`; raise kbackup's error for another one.
        `writing`: the request writes, so that its outcome is unknown without an answer."""
        lost, error = False, errors.KbackupError("")
        for number in range(1, self.options.max_attempts + 1):
            try:
                answer = attempt()
                status = answer.status_code
                text = answer.text if status >= 300 else ""
            except (OSError, HTTPError, GoogleAuthError) as failed:
                # The errors of requests are OSErrors.
                sent, passing = _judge(failed)
                lost = lost or sent
                # Without its cause, which has the address of the request: whoever knows the address of an upload may
                # finish it.
                error = from_failure(self.describe(key), failed)
            else:
                if status < 300 or status in accept:
                    self._seen = True
                    return answer
                lost = lost or status in _MAYBE_DONE
                # After the first refusal of the login there is a new token.
                passing = status in _AGAIN or (status == 401 and number == 1)
                error = from_answer(self.describe(key), status, text, of_bucket=not key)
            if not passing:
                break
            if number < self.options.max_attempts:
                # Tasks that a busy store refused together come again at different times.
                jitter = 0.5 + time.monotonic_ns() % 997 / 1994
                time.sleep(min(_FIRST_WAIT * 2.0 ** (number - 1), _LONGEST_WAIT) * jitter)
        if writing and lost:
            unknown = f"{error.message}, after an attempt without an answer"
            raise errors.OutcomeUnknownError(unknown, error.hint) from error
        raise error


def server_of(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or PORTS.get(url.scheme)


def _is_of_google(url: SplitResult) -> bool:
    """Return whether Google answers there."""
    return (url.hostname or "").endswith(".googleapis.com") and server_of(url)[2] == PORTS["https"]


def _judge(failed: Exception) -> tuple[bool, bool]:
    """Return whether a request without an answer may have taken effect, and whether another one may succeed."""
    if isinstance(failed, RefreshError):
        return False, failed.retryable
    untrusted = isinstance(failed, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(failed)
    unsent = untrusted or isinstance(_reason(failed), (NewConnectionError, ProxyError))
    sent = not unsent and not isinstance(failed, (GoogleAuthError, requests.ConnectTimeout))
    return sent, not untrusted and isinstance(failed, _PASSING)


def _reason(failed: Exception) -> object:
    """Return the cause below an error of requests, whose text has the address of an upload, a secret."""
    return getattr(failed.args[0], "reason", failed) if failed.args else failed


def from_failure(name: str, failed: Exception) -> errors.KbackupError:
    """Return kbackup's error for a request about object `name` without an answer."""
    if isinstance(failed, TransportError):
        return errors.UnreachableError(f"{name}: the login does not answer: {failed}", _NETWORK)
    if isinstance(failed, GoogleAuthError):
        text = str(failed.args[0] if failed.args else failed).rstrip(".")
        return errors.DeniedError(f"{name}: no usable credentials: {text}", _hint_for_login(text))
    if isinstance(failed, (requests.RequestException, HTTPError)):
        hint = "check the endpoint's certificate, or set gcs.ca_bundle" if isinstance(failed, SSLError) else _NETWORK
        return errors.UnreachableError(f"{name}: {_reason(failed)}", hint)
    # What is left of OSErrors: requests can't read the file of certificates.
    return errors.UsageError(f"{name}: {failed}", "check gcs.ca_bundle")


def _hint_for_login(text: str) -> str:
    for words, hint in _REFUSED.items():
        if words in text:
            return hint
    return _LOGIN


def from_answer(name: str, status: int, text: str, *, of_bucket: bool = False) -> errors.KbackupError:
    """Return kbackup's error for an answer about the object or, with `of_bucket`, the bucket `name`."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        text = str(json.loads(text)["error"]["message"])
    text = text.strip().partition("\n")[0].rstrip(".")
    if status == 404 and (of_bucket or "bucket does not exist" in text):
        return errors.UnreachableError(f"{name}: the bucket does not exist", "check its name, or create it")
    if status == 404:
        return errors.NotFoundError(f"{name} does not exist")
    message = f"{name}: {status} {text}".rstrip()
    for meaning in _MEANINGS:
        if status in meaning.statuses and meaning.word in text.lower():
            return meaning.error(message, meaning.hint)
    return errors.StoreError(message)
