"""Metrics of a process with several archives, and of topics that vanish."""

from __future__ import annotations

import threading
from pathlib import Path

from kbackup.metrics.registry import Counted
from kbackup.metrics.server import MetricsFile, samples, text
from tests.unit.metrics.test_registry import read


def test_each_archive_of_a_process_has_its_own_values(tmp_path: Path) -> None:
    """As in a mirror of two sources: each half counts in a thread of its own."""
    own = Counted()
    own.begin("mirror")
    own.archive("s3://b/B")
    own.put("kbackup_success", 1)
    own.add("kbackup_notifications_total", 1, "failed")

    def half(archive: str, number: int) -> None:
        with own.of_archive(archive):
            own.put("kbackup_restore_point", number)
            own.add("kbackup_records_total", number)

    threads = [threading.Thread(target=half, args=(f"s3://b/{name}", n)) for n, name in ((7, "A"), (3, "B"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def by_archive(name: str) -> dict[str, float]:
        found = samples(own.snapshot()).items()
        return {dict(labels)["archive"]: value for (n, labels), value in found if n == name}

    assert by_archive("kbackup_restore_point") == {"s3://b/A": 7, "s3://b/B": 3}
    assert by_archive("kbackup_records_total") == {"s3://b/A": 7, "s3://b/B": 3}
    assert by_archive("kbackup_success") == {"s3://b/A": 1, "s3://b/B": 1}, "of the process"
    assert by_archive("kbackup_notifications_total") == {"s3://b/B": 1}, "no sum counts it twice"
    assert text(own.snapshot()).count(b"kbackup_records_total{") == 2


def test_a_topic_that_vanished_has_no_series(tmp_path: Path) -> None:
    """Neither in the process nor in its file, which an earlier process has written."""
    path = tmp_path / "kbackup.prom"
    name = "kbackup_mirror_record_count_total"
    for topics in (("orders", "clicks"), ("orders",)):
        own = Counted()
        own.begin("mirror")
        file = MetricsFile(str(path), "mirror")
        for topic in (*topics, "gone"):
            own.add(name, 2, "A", "B", topic, "0")
        own.add(name, 1, "A", "C", "gone", "0")
        own.retain([name], ("A", "B"), {(topic, "0") for topic in topics})
        file.write(own.snapshot())
    own_labels = ("source", "target", "topic")
    remaining = {
        tuple(dict(labels)[label] for label in own_labels): value
        for (n, labels), value in read(path.read_bytes()).items()
        if n == name
    }
    assert remaining == {("A", "B", "orders"): 4, ("A", "C", "gone"): 2}
