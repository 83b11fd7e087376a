"""Client properties that need care: callbacks for OAUTHBEARER tokens by name, and properties that are refused."""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from kbackup.errors import UsageError

CALLBACK = "kbackup.oauth.callback"
"""The property that names it, `module:function`; librdkafka never sees it."""

_SHAPE = "(token, expiry in seconds since the epoch[, principal[, extensions]])"


class OAuthToken(NamedTuple):
    """`expires` in seconds since the epoch; `extensions` are SASL extensions (RFC 7628)."""

    value: str
    expires: float
    principal: str = ""
    extensions: Mapping[str, str] = {}


class Tokens:
    """Calls the function with `sasl.oauthbearer.config`, as confluent-kafka calls an `oauth_cb`. `failure` is the
    reason why the last call gave no usable token, '' if it did. A token itself is never shown."""

    def __init__(self, name: str, role: str) -> None:
        self.name = name
        self.failure = ""
        module, _, function = name.partition(":")
        hint = f"name an importable module:function that returns {_SHAPE}"
        try:
            self._function = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(f"[{role}] {CALLBACK} = {name!r} can't be found: {error}", hint) from error
        if not callable(self._function):
            raise UsageError(f"[{role}] {CALLBACK} = {name!r} is no function", hint)

    def __call__(self, config: str) -> OAuthToken:
        """Raises what the function raises, and `ValueError` for what is no token."""
        try:
            token = _token_of(self._function(config))
        except Exception as error:
            words = str(error).replace(config, "…") if config else str(error)
            self.failure = f"{self.name} raised {type(error).__name__}: {words}"
            raise
        self.failure = ""
        return token


def _token_of(answer: Any) -> OAuthToken:
    try:
        token = OAuthToken(*answer)
        fits = bool(token.value) and isinstance(token.value, str) and isinstance(token.principal, str)
        remaining = float(token.expires) - time.time()
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"its answer is not {_SHAPE}")
    if remaining <= 0:
        raise ValueError(f"its token expired {-remaining:.0f} s ago")
    return token


COMMON = (
    *("bootstrap.servers", "client.id", "client.rack", "security.protocol", "fetch.message.max.bytes"),
    *("sasl.mechanism", "sasl.username", "sasl.password", "sasl.kerberos.service.name"),
    *("sasl.oauthbearer.method", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.client.id"),
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.password", "ssl.key.pem", "ssl.keystore.location", "ssl.keystore.password"),
    *("ssl.endpoint.identification.algorithm", "socket.timeout.ms", "message.max.bytes", "compression.type"),
)
"""Properties that a misspelt name is likely to mean."""

_NOT_CHECKED = {CALLBACK, "plugin.library.paths"}
"""kbackup's own, and one whose check would load foreign code."""

_TEXT = 512  # bytes for librdkafka's words

RefusalKind = Literal["unknown name", "invalid value"]
_KINDS: dict[int, RefusalKind] = {-2: "unknown name", -1: "invalid value"}
"""By `rd_kafka_conf_res_t`."""


class PropertyRefusal(NamedTuple):
    """`words` are librdkafka's; they may show the value."""

    kind: RefusalKind
    words: str


def refusal(name: str, value: str) -> PropertyRefusal | None:
    """Return librdkafka's objection to a property by its own rules; None if it accepts the property. No client is made,
    and nothing connects."""
    if name in _NOT_CHECKED:
        return None
    library = _library()
    words = ctypes.create_string_buffer(_TEXT)
    conf = library.rd_kafka_conf_new()
    try:
        result = library.rd_kafka_conf_set(conf, name.encode(), value.encode(), words, _TEXT)
    finally:
        library.rd_kafka_conf_destroy(conf)
    kind = _KINDS.get(result)
    return PropertyRefusal(kind, words.value.decode(errors="replace").strip()) if kind is not None else None


@cache
def _library() -> Any:
    """Load the library from the file that confluent-kafka brings: to import that package takes five times as long, and
    most commands that read a configuration need no cluster."""
    package = find_spec("confluent_kafka")
    binding = PathFinder.find_spec("cimpl", package.submodule_search_locations) if package is not None else None
    assert binding is not None  # noqa: S101 (kbackup requires confluent-kafka)
    library: Any = ctypes.CDLL(binding.origin)  # its dependencies' symbols are found through it
    library.rd_kafka_conf_new.restype = c_void_p
    library.rd_kafka_conf_destroy.argtypes = (c_void_p,)
    library.rd_kafka_conf_destroy.restype = None
    library.rd_kafka_conf_set.argtypes = (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)
    library.rd_kafka_conf_set.restype = c_int
    return library
