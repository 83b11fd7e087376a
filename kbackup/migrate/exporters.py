"""The witness metrics: a node's state by its Prometheus exporter.

Exporters make different names of `kafka.controller:type=KafkaController,name=ZkMigrationState`, such as
`kafka_controller_KafkaController_Value{name="ZkMigrationState"}`,
`kafka_controller_kafkacontroller_zkmigrationstate` and `kafka_controller_KafkaController_ZkMigrationState_Value`.
"""

from __future__ import annotations

import base64
import math
import ssl
import urllib.request
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from kbackup.errors import CorruptError, UsageError
from kbackup.metadata.sources import MetricsAccess
from kbackup.migrate import states
from kbackup.migrate.states import NotRead, tried

_TIMEOUT = 5.0  # s
_LARGEST = 64 << 20  # bytes of one answer
_HINT = "give the URL of a Prometheus exporter in a controller, such as http://controller-1:9404/metrics"
_HINT_LOGIN = "set controller.metrics.username and controller.metrics.password in [source]"
_HINT_DOWN = "is the controller running, and the exporter in it?"
_BEAN = "kafkacontroller"


def read_metrics(url: str, access: MetricsAccess) -> states.MetricsWitness | NotRead:
    """Ask an exporter. `UsageError` if `url` is none of http or https, or a file of `access` can't be used."""
    shown = shown_url(url)
    tls = _trust(access.certificates) if url.lower().startswith("https:") else None
    request = urllib.request.Request(url)  # noqa: S310 (shown_url refuses other schemes)
    if access.user:
        login = base64.b64encode(f"{access.user}:{access.password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {login}")  # no other server gets it
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT, context=tls) as answer:  # noqa: S310 (the same)
            text = answer.read(_LARGEST).decode("utf-8", "replace")
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", error)
        hint = _HINT_DOWN
        if isinstance(error, HTTPError):
            if error.code in (401, 403):
                hint = _HINT_LOGIN
            error.close()  # it holds the answer's socket
        return NotRead(f"{shown} gave no metrics: {why}", hint)
    return tried(lambda: parse_metrics(text, shown))


def _trust(certificates: str) -> ssl.SSLContext:
    """Return TLS that trusts a PEM file of certificates, or the system's if none is named."""
    try:
        return ssl.create_default_context(cafile=certificates or None)
    except OSError as error:
        raise UsageError(
            f"controller.metrics.ssl.truststore.location: can't use {certificates}: {error.strerror or error}",
            "name a readable PEM file of certificates",
        ) from None


def shown_url(url: str) -> str:
    """Return `url` without its query. `UsageError` if its scheme is neither http nor https, or where it has a
    password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("--metrics-url is no http or https URL", _HINT)
    if "@" in parts.netloc:
        raise UsageError("--metrics-url has a user or a password", _HINT_LOGIN)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def parse_metrics(text: str, url: str) -> states.MetricsWitness:
    """Return the witness in an answer in Prometheus' text format. `CorruptError` for another format, and for metrics
    that are not of a Kafka controller."""
    values: dict[str, int] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = _gauge(sample.name, sample.labels)
                # An exporter may show one gauge under two names: the first one counts.
                if name and math.isfinite(sample.value):
                    values.setdefault(name, int(sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise CorruptError(f"{url} gave no Prometheus metrics: {error}", _HINT) from None
    number = values.get("zkmigrationstate")
    if number is None or number not in {_NO_LEADER, *states.KafkaState}:
        raise CorruptError(f"{url} has no ZkMigrationState", f"{_HINT}, and let it export kafka.controller")
    state = None if number == _NO_LEADER else states.KafkaState(number)
    active = values.get("activecontrollercount")
    is_active = None if active is None else active == 1
    return states.MetricsWitness(
        url=url,
        state=state,
        is_active=is_active,
        zk_brokers=values.get("migratingzkbrokercount"),
        lag=values.get("zkwritebehindlag"),
    )


_NO_LEADER = -1  # of a controller that has seen no metadata since it started
_GAUGES = ("zkmigrationstate", "migratingzkbrokercount", "zkwritebehindlag", "activecontrollercount")


def _gauge(name: str, labels: dict[str, str]) -> str:
    """Return the lower-case name of the gauge of the KafkaController bean that a sample has; '' for other samples."""
    plain = name.replace("_", "").lower().removesuffix("value")
    if _BEAN not in plain and labels.get("type", "").lower() != _BEAN:
        return ""
    attribute = labels.get("name", "").lower()
    for gauge in _GAUGES:
        if attribute == gauge or plain.endswith(gauge):
            return gauge
    return ""
