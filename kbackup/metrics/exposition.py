"""Write the counters in Prometheus' text format: as a file for node_exporter's textfile collector, or as bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kbackup.errors import UsageError
from kbackup.metrics.registry import METRICS, Snapshot

_SHARED = ("command", "archive")

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]
"""(name, its labels sorted by name) -> value."""


def samples(snapshot: Snapshot) -> Samples:
    """Return the values of each archive. Gauges of the process hold for all of its archives."""
    process = {key: value for key, value in snapshot.values.items() if METRICS[key[0]].kind == "gauge"}
    archives = {archive: {**process, **own} for archive, own in snapshot.by_archive.items()}
    own = archives.setdefault(snapshot.archive, process)
    for key in snapshot.values.keys() - process.keys():
        own[key] = own.get(key, 0) + snapshot.values[key]
    values: Samples = {}
    for archive, counted in archives.items():
        shared = {"command": snapshot.command, "archive": archive}
        for (name, labels), value in counted.items():
            given = zip(METRICS[name].labels, labels, strict=True)
            values[name, tuple(sorted({**shared, **dict(given)}.items()))] = value
    return values


def text(snapshot: Snapshot) -> bytes:
    return generate_latest(_registry(samples(snapshot)))


class MetricsFile:
    """A file for node_exporter's textfile collector, to be made before the work.

    `UsageError` where the file can't be written. Counters continue from the values in the file, and metrics that
    `stays` marks keep theirs: Prometheus would miss earlier runs in a file of one run alone.
    """

    def __init__(self, path: str, command: str) -> None:
        folder = Path(path).absolute().parent
        if Path(path).is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(
                f"can't write the metrics file {path}", "name a file in a folder that can be written"
            )
        self._path, self._command = path, command
        self._former = _former(path)

    def write(self, snapshot: Snapshot) -> None:
        """Written beside it and renamed; `OSError` where that fails."""
        write_to_textfile(self._path, _registry(_with_former(self._former, samples(snapshot), self._command)))


def _former(path: str) -> Samples:
    """Read the samples of an earlier file; none where it does not exist or is not one of ours."""
    try:
        families = list(text_string_to_metric_families(Path(path).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def _with_former(former: Samples, new: Samples, command: str) -> Samples:
    merged = dict(new)
    for (name, labels), value in former.items():
        metric = METRICS.get(name)
        if metric is None or dict(labels).get("command") != command:
            continue
        if metric.kind == "counter":
            if (
                name,
                labels,
            ) in merged or "topic" not in metric.labels:  # a topic that vanished has no series
                merged[name, labels] = merged.get((name, labels), 0) + value
        elif metric.stays:
            merged.setdefault((name, labels), value)
    return merged


def _registry(samples: Samples) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SamplesCollector(samples))
    return registry


class _SamplesCollector(Collector):
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        for name, metric in METRICS.items():
            own = {labels: value for (n, labels), value in self._samples.items() if n == name}
            if not own:
                continue
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            names = [*_SHARED, *metric.labels]
            family = kind(name, metric.help, labels=names)
            for labels, value in sorted(own.items()):
                given = dict(labels)
                family.add_metric([given.get(label, "") for label in names], value)
            yield family
