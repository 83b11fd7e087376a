"""Requests to one container, by azure-core's pipeline: one client per process for each account and set of options.

Credentials and signatures are those of azure-storage-blob; the requests are built here.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from azure.core import PipelineClient
from azure.core.exceptions import AzureError, ClientAuthenticationError, ServiceRequestError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import BearerTokenCredentialPolicy, HTTPPolicy, ProxyPolicy, UserAgentPolicy
from azure.core.pipeline.transport import RequestsTransport
from azure.core.rest import HttpRequest, HttpResponse
from azure.storage.blob import BlobServiceClient
from requests import Session
from requests.adapters import HTTPAdapter

from kbackup import __version__, errors
from kbackup.errors import KbackupError, StoreError, UsageError
from kbackup.store.azure import AzureOptions
from kbackup.store.base import PORTS, SHORTER, Address, KeyClasses, check_key, key_within, write_once
from kbackup.store.bucket import STRANGE, strange_answers
from kbackup.store.parts import Body
from kbackup.util.plain_http import warn_of_plain_http

# Why requests are not sent by azure-storage-blob's BlobClient and ContainerClient:
#
# - They read a whole chunk into memory before they give a byte, wait 15 s before they try again, and can't tell whether
#   an attempt without an answer may have taken effect.
# - They take more of this process's CPU. Against Azurite, in turns, the least of four rounds, for what is below and for
#   them: 300 puts of 2 kB 0.30 and 0.43 s, 300 gets 0.25 and 0.47 s, 300 stats 0.26 and 0.40 s, ten listings of 300
#   objects 0.08 and 0.47 s. Reading 64 MiB with as little memory took 0.6 and 3.1 s. Only uploads of blocks were alike.

# The oldest interface of the service that has all that is used: emulators and Azure Stack know few newer ones.
_VERSION = "2021-12-02"
_CLOUDS = (".core.windows.net", ".storage.azure.net", ".core.chinacloudapi.cn", ".core.usgovcloudapi.net")
_SCOPE = "https://storage.azure.com/.default"
_CONNECTIONS = 32
_AGAIN = {408, 429, 500, 502, 503, 504}
_MAYBE_DONE = {408, 500, 502, 504}
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0  # s

_attempts = threading.local()
"""`lost`: whether an attempt of this thread's last request may have taken effect unheard. `busy`: whether one was told
that the service is busy."""


class _Client(NamedTuple):
    """`sas` is what goes into each query."""

    pipeline: PipelineClient[HttpRequest, HttpResponse]
    endpoint: str
    sas: str


_lock = threading.Lock()
_made: dict[tuple[object, ...], _Client] = {}
"""Clients by account, options and environment."""


def _forget() -> None:
    # The parent's lock may be held by a thread that does not exist in this process.
    global _lock
    _lock = threading.Lock()
    _made.clear()


os.register_at_fork(after_in_child=_forget)


def _client_of(account: str, options: AzureOptions) -> _Client:
    """Return this process's client, which is thread-safe."""
    # azure-identity reads these variables. A program that changes one gets another login.
    prefixes = ("AZURE_", "IDENTITY_", "MSI_")
    env = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    variables = tuple(sorted(env.items()))
    key = account, options, variables
    with _lock:
        if key not in _made:
            _made[key] = _make_client(account, options, env)
        return _made[key]


def _make_client(account: str, options: AzureOptions, env: Mapping[str, str]) -> _Client:
    endpoint, authorization, sas = _login(account, options, env)
    # Of all logins the SAS token alone is sent without TLS: an account's key signs requests and is not sent, and the
    # SDK refuses to send tokens of identities.
    if sas:
        warn_of_plain_http("the SAS token of azure", endpoint)
    session = Session()
    # A store's deletes and uploads go on side by side. More connections than this would be closed after each request.
    connections = max(_CONNECTIONS, 2 * options.parts_in_flight)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=connections, max_retries=0))
    transport = RequestsTransport(
        session=session,
        connection_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        connection_verify=options.ca_bundle or True,
    )
    # Authorization comes last, so that each attempt is signed anew, with its own date.
    policies = [UserAgentPolicy(f"kbackup/{__version__}"), ProxyPolicy(), _Attempts(options.max_attempts)]
    policies += authorization
    pipeline: PipelineClient[HttpRequest, HttpResponse] = PipelineClient(
        endpoint, transport=transport, policies=policies
    )
    return _Client(pipeline, endpoint, sas)


def _login(account: str, options: AzureOptions, env: Mapping[str, str]) -> tuple[str, list[Any], str]:
    """Return the endpoint, the policy that authorizes requests, if there is one, and the SAS token.

    What the environment has for another account is not used.
    """
    given = {"key": options.account_key, "sas": options.sas_token, "string": options.connection_string}
    is_ours = env.get("AZURE_STORAGE_ACCOUNT", account).lower() == account
    if not any(given.values()) and is_ours:
        given["key"] = env.get("AZURE_STORAGE_KEY", "")
        given["sas"] = env.get("AZURE_STORAGE_SAS_TOKEN", "")
        given["string"] = env.get("AZURE_STORAGE_CONNECTION_STRING", "")
    endpoint = options.endpoint_url or f"https://{account}.blob.core.windows.net"
    if given["string"]:
        service = _service_of(given["string"])
        # A string with a SAS token alone names no account.
        if service.account_name in {account, None}:
            endpoint, _, sas = service.url.partition("?")
            authorization = [] if sas else [service.credential]
            return options.endpoint_url or endpoint.rstrip("/"), authorization, sas
        if options.connection_string:
            raise UsageError(
                f"azure.connection_string is of the account {service.account_name}, not of {account}",
                "write its account into the address, or set the other account's string",
            )
        # The environment's string is of another account: so are its key and its token.
        given["key"] = given["sas"] = ""
    if given["key"]:
        named = {"account_name": account, "account_key": given["key"]}
        service = BlobServiceClient(endpoint, credential=named)
        return endpoint, [service.credential], ""
    if given["sas"]:
        return endpoint, [], given["sas"].removeprefix("?")
    from azure.identity import DefaultAzureCredential

    return endpoint, [BearerTokenCredentialPolicy(DefaultAzureCredential(), _SCOPE)], ""


def _service_of(connection_string: str) -> BlobServiceClient:
    try:
        return BlobServiceClient.from_connection_string(connection_string)
    except ValueError as error:
        # Without its cause, whose traceback has the string.
        raise UsageError(f"azure.connection_string can't be used: {error}", "copy it from the account") from None


class _Attempts(HTTPPolicy[HttpRequest, HttpResponse]):
    """Send a request again, at most `most` times in all, and remember whether it may have taken effect unheard."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def send(self, request: PipelineRequest[HttpRequest]) -> PipelineResponse[HttpRequest, HttpResponse]:
        sent, body = request.http_request, request.http_request.content
        for attempt in range(1, self._most + 1):
            is_last = attempt == self._most
            sent.headers["x-ms-date"] = format_datetime(datetime.now(UTC), usegmt=True)
            if body:
                body.seek(0)
            try:
                reply = self.next.send(request)
            except ClientAuthenticationError:
                raise
            except AzureError as error:
                # The SDK raises `ServiceRequestError` where there was no connection: nothing was sent.
                _attempts.lost |= not isinstance(error, ServiceRequestError)
                if is_last:
                    raise
            else:
                answer = reply.http_response
                may_pass = answer.status_code in _AGAIN
                cut = not may_pass and _is_cut(sent.method, answer)
                _attempts.lost |= cut or answer.status_code in _MAYBE_DONE
                # The service did nothing, but proxies also answer so when their server hangs up.
                _attempts.busy |= answer.status_code == 503
                if not cut and (not may_pass or is_last):
                    return reply
                answer.close()
                if is_last:
                    raise AzureError("the connection was closed within the headers of the answer")
            # Tasks that a busy service refused together come again at different times.
            wait = min(_FIRST_WAIT * 2.0 ** (attempt - 1), _LONGEST_WAIT)
            time.sleep(wait * random.uniform(0.5, 1))  # noqa: S311
        raise AssertionError("no attempt was made")


def _is_cut(method: str, answer: HttpResponse) -> bool:
    """Return True if the headers of `answer` are not whole."""
    # Python's HTTP client takes the end of a connection for the end of the headers. The service sends a date behind the
    # headers of an object, and the length of a body.
    headers = answer.headers
    is_dated = headers.get("date", "").endswith("GMT")
    is_framed = "content-length" in headers or headers.get("transfer-encoding", "").lower() == "chunked"
    return not is_dated or not (is_framed or method == "HEAD")


class Container:
    """One container and prefix: requests, with errors mapped. Picklable."""

    def __init__(
        self, account: str, name: str, prefix: str, options: AzureOptions, key_class: KeyClasses = write_once
    ) -> None:
        self.account, self.name = account, name
        self.options, self.key_class = options, key_class
        self.prefix = f"{check_key(prefix)}/" if prefix else ""
        self._client: tuple[int, _Client] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Container, (self.account, self.name, self.prefix.removesuffix("/"), self.options, self.key_class)

    @property
    def client(self) -> _Client:
        """Return the client of this process: connections don't survive forks."""
        known, pid = self._client, os.getpid()
        if known is None or known[0] != pid:
            known = self._client = pid, _client_of(self.account, self.options)
        return known[1]

    @property
    def address(self) -> Address:
        """Return the normalized address: an account of Azure has one, whatever its endpoint is called."""
        url = urlsplit(self.client.endpoint)
        host = url.hostname or ""
        if host.endswith(_CLOUDS):
            server = "azure"
        else:
            port = url.port or PORTS.get(url.scheme, 443)
            server = f"{host}:{port}"
        names = [name for name in self.prefix.split("/") if name]
        return Address(server, (self.account, self.name, *names))

    def full(self, key: str) -> str:
        """Return the blob's name for the store's `key`. The service takes '.' from the end of a name, and '\\' for
        '/': two keys would be one."""
        full = key_within(self.prefix, key)
        if "\\" in full or "./" in f"{full}/":
            raise StoreError(
                f"key {full!r} can't be used: Azure keeps no names with '\\' or with '.' at their end",
                "exclude what has this name, or use another store",
            )
        return full

    def describe(self, key: str = "") -> str:
        return f"az://{self.account}/{self.name}/{self.prefix}{key}".rstrip("/")

    def creation(self, key: str, crc: int) -> dict[str, str]:
        """Return the headers of a request that makes the object `key`."""
        headers = {CRC: f"{crc:016x}", "content-type": "application/octet-stream"}
        options = self.options
        if self.key_class(key).replaced:
            return headers
        if options.access_tier:
            headers["x-ms-access-tier"] = options.access_tier
        if options.immutability_mode:
            until = datetime.now(UTC) + timedelta(days=options.immutability_days)
            headers["x-ms-immutability-policy-mode"] = options.immutability_mode
            headers["x-ms-immutability-policy-until-date"] = format_datetime(until, usegmt=True)
        return headers

    def send(
        self,
        method: str,
        key: str | None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        *,
        query: Mapping[str, str] | None = None,
        stream: bool = False,
        writing: bool = False,
    ) -> HttpResponse:
        """Return the answer to a request about an object, or the container (`key` None); raise kbackup's error for an
        answer that is none of success. `writing`: the outcome is unknown without an answer."""
        name = self.describe(key or "")
        fields = {"x-ms-version": _VERSION, "accept-encoding": "identity", **(headers or {})}
        if method == "PUT":
            fields["content-length"] = str(len(body) if body is not None else 0)
        url = self._url(key, query or {})
        request: Any = HttpRequest(method, url, headers=fields, content=body)  # type: ignore[arg-type]
        _attempts.lost = _attempts.busy = False
        try:
            with strange_answers(name, writing=writing):
                answer = self.client.pipeline.send_request(request, stream=stream)
            if answer.status_code < 300:
                return answer
            with suppress(AzureError):
                answer.read()
        except AzureError as error:
            # Without its cause, which has the query, and so a SAS token.
            raise _without_answer(name, error, writing and _attempts.lost) from None
        # After a busy answer a refusal may be due to our own attempt before.
        is_refused = answer.status_code in {409, 412}
        lost = _attempts.lost or (is_refused and _attempts.busy)
        raise from_answer(name, answer, writing and lost)

    def _url(self, key: str | None, query: Mapping[str, str]) -> str:
        path = self.name if key is None else f"{self.name}/{self.full(key)}"
        address = f"{self.client.endpoint.rstrip('/')}/{quote(path, safe='/~')}"
        parts = [urlencode(query, quote_via=quote), self.client.sas]
        text = "&".join(part for part in parts if part)
        return f"{address}?{text}" if text else address


# The service's own CRC-64 has another polynomial, so the object carries ours as metadata.
CRC = "x-ms-meta-kbackup_crc64nvme"


# Azure's errors in the store's words. Messages hold the service's text, never queries or signatures.

_BUSY = "run again later, or with fewer tasks: the store is overloaded or broken"
_RIGHTS = "give the identity the role Storage Blob Data Contributor for the container"
_NO_CONTAINER: tuple[type[KbackupError], str] = errors.UnreachableError, "check its name and account, or create it"
# Nothing was stored: what is there is not damaged, and the bytes may be sent again.
_DAMAGED = errors.StoreError, "run again, and check memory and network: the bytes were damaged on their way"
_BY_CODE: dict[str, tuple[type[KbackupError], str]] = {
    "ContainerNotFound": _NO_CONTAINER,
    "ContainerBeingDeleted": _NO_CONTAINER,
    "ContainerDisabled": _NO_CONTAINER,
    "Md5Mismatch": _DAMAGED,
    "InvalidMd5": _DAMAGED,
    "BlobAlreadyExists": (errors.PreconditionError, ""),
    # Another writer made the object, and with it the service removed all blocks that were not in its list.
    "InvalidBlockList": (errors.PreconditionError, ""),
    "LeaseIdMissing": (errors.StoreError, "break the lease that somebody has on it"),
    "AuthorizationFailure": (
        errors.DeniedError,
        "check azure.account_key, azure.sas_token, and the account's rules for networks",
    ),
    "AuthorizationPermissionMismatch": (errors.DeniedError, f"{_RIGHTS}, or the SAS token the rights racwdl"),
    "KeyBasedAuthenticationNotPermitted": (errors.DeniedError, "log in by an identity: the account takes no keys"),
    "NoAuthenticationInformation": (errors.DeniedError, "run az login, or set azure.account_key or azure.sas_token"),
    "InvalidAuthenticationInfo": (errors.DeniedError, "log in again: the token is not valid for this account"),
    "BlobImmutableDueToPolicy": (errors.DeniedError, "wait until its policy ends: the object is immutable"),
    "BlobArchived": (errors.StoreError, "rehydrate it to a tier that answers at once: it is in the archive tier"),
}
_BY_STATUS: dict[int, tuple[type[KbackupError], str]] = {
    401: (errors.DeniedError, _RIGHTS),
    403: (errors.DeniedError, _RIGHTS),
    404: (errors.NotFoundError, ""),
    412: (errors.PreconditionError, ""),
    416: (errors.CorruptError, SHORTER),
    **dict.fromkeys(_AGAIN, (errors.UnreachableError, _BUSY)),
}
_UNAUTHENTIC = {
    "date header": "set this machine's clock",
    "time frame": "give a new SAS token: this one has expired, or this machine's clock is wrong",
    "MAC signature": "check azure.account_key",
}
"""Hints by a word in the service's text about a signature that it refuses."""
_NOISE = re.compile(r".*\(Caused by (\w+\([\"']?)?|<[^>]*>[:,] |\S*://\S*|\?\S*|[\"')]+$", re.DOTALL)
"""Parts of a text that tell a user nothing, and queries, which have signatures."""


def _without_answer(name: str, error: AzureError, lost: bool) -> KbackupError:
    """Return kbackup's error where no answer came. `lost`: an attempt of this write may have taken effect."""
    text = _NOISE.sub("", str(error)).partition("\n")[0].rstrip(".")
    if lost:
        return errors.OutcomeUnknownError(f"{name}: no answer to a write ({text})")
    if isinstance(error, ClientAuthenticationError):
        hint = "run az login, or set azure.account_key, azure.sas_token or the variables of an identity"
        return errors.DeniedError(f"{name}: no usable credentials: {text}", hint)
    if "non-TLS" in text:
        return errors.UsageError(f"{name}: {text}", "set an https endpoint, or azure.account_key")
    hint = "check the account's name, the endpoint, the network and whether the store is up"
    if "SSL" in text:
        hint = "check the endpoint's certificate, or set azure.ca_bundle"
    return errors.UnreachableError(f"{name}: {text}", hint)


def from_answer(name: str, answer: HttpResponse, lost: bool) -> KbackupError:
    """Return kbackup's error for an answer about object `name`. `lost`: an earlier attempt of this write may have taken
    effect."""
    code, status = answer.headers.get("x-ms-error-code", ""), answer.status_code
    text, detail = answer.reason, ""
    # An answer to HEAD has no body, and a proxy's may be anything.
    with suppress(*STRANGE, AzureError):
        document = ElementTree.fromstring(answer.content)  # noqa: S314 (the store is trusted as much as its data)
        text, detail = document.findtext("Message", ""), document.findtext("AuthenticationErrorDetail", "")
    message = f"{name}: {code or status}"
    for part in (text, detail):
        if part:
            first_line = part.partition("\n")[0]
            message += f": {first_line.rstrip('.')}"
    kind, hint = _BY_CODE.get(code) or _BY_STATUS.get(status) or (errors.StoreError, "")
    if _BY_CODE.get(code) == _NO_CONTAINER:
        return kind(f"{name}: the container does not exist", hint)
    if kind is errors.NotFoundError:
        message = f"{name} does not exist"
    if detail:
        hint = _hint_for_signature(detail)
    if lost:
        return errors.OutcomeUnknownError(f"{message}, after an attempt without an answer")
    return kind(message, hint)


def _hint_for_signature(detail: str) -> str:
    for words, hint in _UNAUTHENTIC.items():
        if words in detail:
            return hint
    return "check azure.sas_token"
