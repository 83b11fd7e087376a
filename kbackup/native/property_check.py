"""Ask librdkafka whether it accepts a property."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

CALLBACK = "kbackup.oauth.callback"
"""The property that names a function for tokens, `module:function`; librdkafka never sees it."""

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
