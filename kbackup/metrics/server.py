"""The counters in Prometheus' text format: as a file for node_exporter's textfile collector, or by HTTP."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kbackup.errors import UsageError
from kbackup.metrics.registry import METRICS, MetricsSnapshot, counted

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]
"""(name, its labels sorted by name) -> value."""


def samples(snapshot: MetricsSnapshot) -> Samples:
    """Return the values of each archive. Gauges of the process hold for all of its archives."""
    gauges = {}
    counters = {}
    for key, value in snapshot.values.items():
        name, _ = key
        if METRICS[name].kind == "gauge":
            gauges[key] = value
        else:
            counters[key] = value
    archives = {archive: {**gauges, **own} for archive, own in snapshot.by_archive.items()}
    # What was counted for no archive counts for the process's own: in all archives it would be counted several times.
    own = archives.setdefault(snapshot.archive, gauges)
    for key, value in counters.items():
        own[key] = own.get(key, 0) + value
    values: Samples = {}
    for archive, counts in archives.items():
        for (name, own_labels), value in counts.items():
            labels = dict(zip(METRICS[name].labels, own_labels, strict=True))
            labels |= {"command": snapshot.command, "archive": archive}
            values[name, _sorted(labels)] = value
    return values


def _sorted(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def text(snapshot: MetricsSnapshot) -> bytes:
    registry = _registry(samples(snapshot))
    return generate_latest(registry)


class MetricsFile:
    """A file for node_exporter's textfile collector, to be made before the work.

    `UsageError` if the file can't be written. Counters continue from the values in the file, and metrics that `stays`
    marks keep their values.
    """

    # Prometheus reads the file now and then: of a file with one run's values alone it would miss earlier runs.

    def __init__(self, path: str, command: str) -> None:
        file = Path(path).absolute()
        # A folder, or /dev/null, which the rename would replace.
        is_other = file.exists() and not file.is_file()
        if is_other or not os.access(file.parent, os.W_OK | os.X_OK):
            raise UsageError(f"can't write the metrics file {path}", "name a file in a folder that can be written")
        self._path, self._command = path, command
        self._former = _samples_in(file)

    def write(self, snapshot: MetricsSnapshot) -> None:
        """Write a file beside the present one, and rename it; `OSError` if that fails."""
        merged = samples(snapshot)
        for former in self._former:
            metric = METRICS.get(former.name)
            key = former.name, _sorted(former.labels)
            if metric is None or former.labels.get("command") != self._command:
                continue
            if metric.kind == "counter":
                # A topic that is no longer there has no series any more.
                if key in merged or "topic" not in metric.labels:
                    merged[key] = merged.get(key, 0) + former.value
            elif metric.stays:
                merged.setdefault(key, former.value)
        write_to_textfile(self._path, _registry(merged))


def _samples_in(file: Path) -> list[Sample]:
    """Return the samples of a file; none if there is no file, or it is not one of Prometheus."""
    samples: list[Sample] = []
    try:
        content = file.read_text(encoding="utf-8")
        for family in text_string_to_metric_families(content):
            samples += family.samples
    except (FileNotFoundError, ValueError):
        return []
    return samples


def _registry(samples: Samples) -> CollectorRegistry:
    class Samples(Collector):
        def collect(self) -> Iterable[Metric]:
            by_name: dict[str, list[tuple[Labels, float]]] = {}
            for (name, labels), value in samples.items():
                by_name.setdefault(name, []).append((labels, value))
            for name, metric in METRICS.items():
                if name not in by_name:
                    continue
                family_type = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                label_names = ["command", "archive", *metric.labels]
                family = family_type(name, metric.help, labels=label_names)
                for labels, value in sorted(by_name[name]):
                    given = dict(labels)
                    family.add_metric([given.get(label, "") for label in label_names], value)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Samples())
    return registry


# Serve `/metrics` and `/healthz` over HTTP by daemon threads.
#
# Answers come from memory. No request reaches Kafka or the store, so a scraper can't slow a backup down.


_PLAIN = "text/plain; charset=utf-8"


class Health:
    """The health of a process: good while the last success is at most `stale_after` seconds old. Thread-safe."""

    def __init__(self, stale_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stale_after, self._clock = stale_after, clock
        # The start counts as a success: a process that has just begun is not stale.
        self._last_success, self._error = clock(), ""

    def record_success(self) -> None:
        self._last_success, self._error = self._clock(), ""

    def failed(self, error: str) -> None:
        self._error = error

    def answer(self) -> tuple[int, str]:
        """Return the HTTP status and the text of the answer."""
        age = self._clock() - self._last_success
        last_error = ""
        if self._error:
            # Escaped: an error may hold a topic's name, with whatever characters that has.
            printable = self._error.encode("unicode_escape").decode()
            last_error = f"; last error: {printable}"
        if age > self._stale_after:
            return 503, f"stale: no round has ended well for {age:.0f} s{last_error}\n"
        return 200, f"ok: {age:.0f} s{last_error}\n"


class JointHealth:
    """The health of a process with several components: good while each component's health is. Thread-safe."""

    def __init__(self, stale_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stale_after, self._clock = stale_after, clock
        self._parts: dict[str, Health] = {}

    def add_component(self, name: str) -> Health:
        """Return the health of a new component."""
        self._parts[name] = health = Health(self._stale_after, self._clock)
        return health

    def answer(self) -> tuple[int, str]:
        """Return the HTTP status, and a line for each component."""
        status, lines = 200, ""
        # A copy: another thread may add a component meanwhile.
        for name, health in list(self._parts.items()):
            own_status, text = health.answer()
            # 503 of one component is the answer of all.
            status = max(status, own_status)
            lines += f"{name}: {text}"
        return status, lines


def parse_address(listen: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[ipv6]:port` or `:port` (loopback); `UsageError` for other texts."""
    host, sign, port = listen.rpartition(":")
    if not sign or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"can't listen on {listen!r}", "write host:port, such as 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


class Server:
    """A context manager: serves while it is open. `UsageError` if the address can't be bound."""

    def __init__(self, listen: str, health: Health | JointHealth) -> None:
        host, port = parse_address(listen)
        handler = type("Handler", (_Handler,), {"health": health})
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("HTTPServer", (_HTTPServer,), {"address_family": family})
        try:
            self._server: ThreadingHTTPServer = server((host, port), handler)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UsageError(f"can't listen on {listen}: {why}", "choose another --listen") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="kbackup-http", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    # A client that keeps its connection open must not keep this process.
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback: a client that left is nobody's concern."""


class _Handler(BaseHTTPRequestHandler):
    health: Health | JointHealth
    timeout = 10.0  # s, for a client that is slow to ask
    server_version, sys_version = "kbackup", ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            snapshot = counted.snapshot()
            self._send(200, CONTENT_TYPE_LATEST, text(snapshot))
        elif path == "/healthz":
            status, answer = self.health.answer()
            self._send(status, _PLAIN, answer.encode())
        else:
            self._send(404, _PLAIN, b"/metrics, /healthz\n")

    do_HEAD = do_GET  # noqa: N815

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes are not worth a line."""
