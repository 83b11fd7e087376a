"""The counters in Prometheus' text format: as a file for node_exporter's textfile collector, or by HTTP."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kbackup.errors import UsageError
from kbackup.metrics.registry import METRICS, MetricsSnapshot, counted

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]
"""(name, its labels sorted by name) -> value."""


def samples(snapshot: MetricsSnapshot) -> Samples:
    """Return the values of each archive. Gauges of the process hold for all of its archives."""
    process = {key: value for key, value in snapshot.values.items() if METRICS[key[0]].kind == "gauge"}
    archives = {archive: {**process, **own} for archive, own in snapshot.by_archive.items()}
    own = archives.setdefault(snapshot.archive, process)
    for key in snapshot.values.keys() - process.keys():
        own[key] = own.get(key, 0) + snapshot.values[key]
    values: Samples = {}
    for archive, counts in archives.items():
        shared = {"command": snapshot.command, "archive": archive}
        for (name, labels), value in counts.items():
            given = zip(METRICS[name].labels, labels, strict=True)
            values[name, tuple(sorted({**shared, **dict(given)}.items()))] = value
    return values


def text(snapshot: MetricsSnapshot) -> bytes:
    return generate_latest(_registry(samples(snapshot)))


class MetricsFile:
    """A file for node_exporter's textfile collector, to be made before the work.

    `UsageError` if the file can't be written. Counters continue from the values in the file, and metrics that
    `stays` marks keep theirs: Prometheus would miss earlier runs in a file of one run alone.
    """

    def __init__(self, path: str, command: str) -> None:
        file = Path(path).absolute()
        is_other = file.exists() and not file.is_file()  # a folder, or /dev/null, which a rename would replace
        if is_other or not os.access(file.parent, os.W_OK | os.X_OK):
            raise UsageError(f"can't write the metrics file {path}", "name a file in a folder that can be written")
        self._path, self._command = path, command
        try:
            families = list(text_string_to_metric_families(file.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):  # there is none, or it is not one of ours
            families = []
        self._former = [sample for family in families for sample in family.samples]

    def write(self, snapshot: MetricsSnapshot) -> None:
        """Written beside it and renamed; `OSError` if that fails."""
        merged = samples(snapshot)
        for former in self._former:
            metric, key = METRICS.get(former.name), (former.name, tuple(sorted(former.labels.items())))
            if metric is None or former.labels.get("command") != self._command:
                continue
            if metric.kind == "counter":
                if key in merged or "topic" not in metric.labels:  # a topic that vanished has no series
                    merged[key] = merged.get(key, 0) + former.value
            elif metric.stays:
                merged.setdefault(key, former.value)
        write_to_textfile(self._path, _registry(merged))


def _registry(samples: Samples) -> CollectorRegistry:
    class Samples(Collector):
        def collect(self) -> Iterable[Metric]:
            for name, metric in METRICS.items():
                own = sorted((labels, value) for (n, labels), value in samples.items() if n == name)
                if not own:
                    continue
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                names = ["command", "archive", *metric.labels]
                family = kind(name, metric.help, labels=names)
                for labels, value in own:
                    family.add_metric([dict(labels).get(label, "") for label in names], value)
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
        self._well, self._error = clock(), ""

    def record_success(self) -> None:
        self._well, self._error = self._clock(), ""

    def failed(self, error: str) -> None:
        self._error = error

    def answer(self) -> tuple[int, str]:
        """Return the HTTP status and the text of the answer."""
        age = self._clock() - self._well
        said = f"; last error: {self._error.encode('unicode_escape').decode()}" if self._error else ""
        if age > self._stale_after:
            return 503, f"stale: no round has ended well for {age:.0f} s{said}\n"
        return 200, f"ok: {age:.0f} s{said}\n"


class JointHealth:
    """The health of a process with several components: good only while each component's is. Thread-safe."""

    def __init__(self, stale_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stale_after, self._clock = stale_after, clock
        self._parts: dict[str, Health] = {}

    def add_component(self, name: str) -> Health:
        """Return the health of a new component."""
        self._parts[name] = health = Health(self._stale_after, self._clock)
        return health

    def answer(self) -> tuple[int, str]:
        """Return the HTTP status, and a line for each component."""
        answers = {name: health.answer() for name, health in [*self._parts.items()]}
        status = max((status for status, _ in answers.values()), default=200)
        return status, "".join(f"{name}: {text}" for name, (_, text) in answers.items())


def parse_address(listen: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[ipv6]:port` or `:port` (loopback); `UsageError` for others."""
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
    block_on_close = False  # a client that keeps its connection open must not keep us

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is nobody's concern."""


class _Handler(BaseHTTPRequestHandler):
    health: Health | JointHealth
    timeout = 10.0  # s, for a client that is slow to ask
    server_version, sys_version = "kbackup", ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._say(200, CONTENT_TYPE_LATEST, text(counted.snapshot()))
        elif path == "/healthz":
            status, said = self.health.answer()
            self._say(status, _PLAIN, said.encode())
        else:
            self._say(404, _PLAIN, b"/metrics, /healthz\n")

    do_HEAD = do_GET  # noqa: N815

    def _say(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""
