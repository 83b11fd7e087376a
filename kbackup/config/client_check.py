"""Checks the client properties of a configuration, before any cluster is asked."""

from __future__ import annotations

import difflib

from kbackup.config.secrets import is_secret
from kbackup.errors import UsageError
from kbackup.kafka.client.property_check import COMMON, refusal
from kbackup.metadata.sources import check_source_property, is_source_property


def check_client_property(path: str, value: str, *, verbatim: bool, where: str) -> None:
    """Raise `UsageError` for a property of `source` or `target` that librdkafka refuses, or that names a source of
    metadata wrongly. `verbatim`: the value stands in the configuration as it is. Only such a value is shown, and no
    secret."""
    section, _, name = path.partition(".")
    if is_source_property(name):
        if section != "source":
            raise UsageError(f"{where}: {path} is of the source alone", f"set source.{name}")
        check_source_property(path, value, where, show=verbatim)
        return
    refused = refusal(name, value)
    if refused is None:
        return
    hint = (
        "librdkafka's CONFIGURATION.md has names and values; "
        f"give a client.properties of Kafka's own tools by --{section}-config"
    )
    if refused.kind == "unknown name":
        near = difflib.get_close_matches(name, COMMON, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else hint
        raise UsageError(f"{where}: {path}: librdkafka has no property {name}", hint)
    words = refused.words if verbatim and not is_secret(path) else "librdkafka refuses its value"
    raise UsageError(f"{where}: {path}: {words}", hint)
