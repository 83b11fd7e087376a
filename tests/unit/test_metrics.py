"""Metrics: names as documented and by conventions, what is counted, the file, and the endpoints."""

from __future__ import annotations

import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kbackup import __version__
from kbackup.archive.models import Loss, PartitionState, TopicState, Totals
from kbackup.cli import main
from kbackup.errors import UnreachableError, UsageError
from kbackup.jobs.backup.job import BackupReport, backed_up, backup_begins, lag_of, topic_lag
from kbackup.metrics.registry import METRICS, Counted, counted, failed
from kbackup.metrics.server import Health, JointHealth, MetricsFile, Server, parse_address, samples, text

DOCS = Path(__file__).parents[2] / "infra" / "docs"
HOSTILE = 'orders"} 1\nkbackup_success{x="\\'

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    counted.begin("backup")
    yield
    counted.begin("")


def read(data: bytes) -> Samples:
    """Parse by Prometheus' own parser; returns values by name and labels, without `command` and `archive`."""
    return {
        (s.name, tuple(sorted((k, v) for k, v in s.labels.items() if k not in ("command", "archive")))): s.value
        for family in text_string_to_metric_families(data.decode())
        for s in family.samples
    }


def report(number: int = 7, losses: tuple[Loss, ...] = (), topics: tuple[TopicState, ...] = ()) -> BackupReport:
    return BackupReport(
        restore_point=number,
        parent=number - 1,
        committed_at="2026-01-31T01:02:03.500Z",
        archive="s3://b/p",
        totals=Totals(topics=2, partitions=3, segments=4, records=50, bytes=600, stored_bytes=70, groups=8),
        topics=topics,
        losses=losses,
        warnings=(),
        held_back=1,
    )


def state(name: str, *lags: int, word: str = "present") -> TopicState:
    partitions = tuple(
        PartitionState(partition=n, start=0, end=10, log_start=0, log_end=10 + lag, records=10, bytes=10)
        for n, lag in enumerate(lags)
    )
    return TopicState(
        name=name,
        id="",
        incarnation=1,
        captured=1,
        state=word,  # type: ignore[arg-type]
        partitions=partitions,
    )


def test_the_document_lists_exactly_these() -> None:
    lines = [line for line in (DOCS / "metrics.md").read_text("utf-8").splitlines() if line.startswith("| `kb")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows == [
        [f"`{name}`", ", ".join(f"`{label}`" for label in m.labels if not _is_of_all(name, label)), m.help]
        for name, m in METRICS.items()
    ]


def _is_of_all(metric: str, label: str) -> bool:
    """Return whether the document names the label once, for all metrics of a mirror."""
    return metric.startswith("kbackup_mirror_") and label in ("source", "target")


def test_names_follow_the_conventions() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"kbackup(_[a-z]+)+", name), name
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert not re.search(r"milli|_ms|kilo|_kb|_mb|minutes|hours|_time_", name), f"{name}: base units"
        assert not ("timestamp" in name and not name.endswith("_timestamp_seconds")), name
        assert metric.help.endswith("."), name
        assert not {"command", "archive"} & set(metric.labels), f"{name}: all have them"
        assert not (metric.stays and metric.kind == "counter"), name


def test_a_backup_counts_what_its_report_says() -> None:
    backup_begins()
    losses = (
        Loss(kind="retention", topic="t", partition=0, start=3, end=10, message=""),
        Loss(kind="recreated", topic="t", message=""),
    )
    backed_up(report(losses=losses, topics=(state("a", 5, 7), state("b", 1), state("c", 99, word="deleted"))))
    values = read(text(counted.snapshot()))
    expected = {
        "kbackup_records_total": 50,
        "kbackup_bytes_total": 600,
        "kbackup_stored_bytes_total": 70,
        "kbackup_segments_total": 4,
        "kbackup_restore_points_total": 1,
        "kbackup_restore_point": 7,
        "kbackup_restore_point_timestamp_seconds": 1769821323.5,
        "kbackup_topics": 2,
        "kbackup_partitions": 3,
        "kbackup_groups": 8,
        "kbackup_held_back_partitions": 1,
        "kbackup_lag_offsets": 13,
        "kbackup_lag_max_offsets": 7,
        "kbackup_lost_offsets_total": 7,
        "kbackup_retries_total": 0,
    }
    assert {name: value for (name, labels), value in values.items() if not labels} | expected == {
        name: value for (name, labels), value in values.items() if not labels
    }
    assert {dict(k[1])["kind"]: v for k, v in values.items() if k[0] == "kbackup_losses_total"} == {
        "retention": 1,
        "truncated": 0,
        "recreated": 1,
    }
    assert values["kbackup_build_info", (("version", __version__),)] == 1


def test_topics_come_and_go_and_can_be_called_anything() -> None:
    topic_lag({"gone": [1]})
    topic_lag(lag_of([state(HOSTILE, 2, 3)]))
    values = read(text(counted.snapshot()))
    assert {k: v for k, v in values.items() if "topic" in k[0]} == {
        ("kbackup_topic_lag_offsets", (("topic", HOSTILE),)): 5
    }


def test_every_series_has_command_and_archive() -> None:
    """Else files of two jobs on one host would hold the same series, which node_exporter refuses."""
    counted.archive("s3://b/p")
    failed(UnreachableError("no"))
    counted.end(14)
    for family in text_string_to_metric_families(text(counted.snapshot()).decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            assert (sample.labels["command"], sample.labels["archive"]) == ("backup", "s3://b/p")


def test_the_file_goes_on_where_the_last_run_was(tmp_path: Path) -> None:
    path = str(tmp_path / "backup.prom")
    backed_up(report(7))
    counted.end(0)
    MetricsFile(path, "backup").write(counted.snapshot())
    first = read(Path(path).read_bytes())

    counted.begin("backup")
    failed(UnreachableError("no"))
    counted.end(14)
    second_file = MetricsFile(path, "backup")
    for _ in range(2):  # a follower writes it again and again
        second_file.write(counted.snapshot())
    second = read(Path(path).read_bytes())
    assert second["kbackup_success", ()] == 0
    assert second["kbackup_exit_code", ()] == 14
    for name in (
        "kbackup_records_total",
        "kbackup_restore_point",
        "kbackup_restore_point_timestamp_seconds",
        "kbackup_last_success_timestamp_seconds",
    ):
        assert second[name, ()] == first[name, ()], name
    assert second["kbackup_errors_total", (("error", "UnreachableError"), ("exit_code", "14"))] == 1

    counted.begin("backup")
    backed_up(report(8))
    counted.end(0)
    MetricsFile(path, "backup").write(counted.snapshot())
    third = read(Path(path).read_bytes())
    assert third["kbackup_records_total", ()] == 100
    assert third["kbackup_restore_point", ()] == 8
    assert third["kbackup_errors_total", (("error", "UnreachableError"), ("exit_code", "14"))] == 1
    assert third["kbackup_success", ()] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["backup.prom"], "nothing is left beside it"


def test_a_file_that_is_none_of_ours_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    path.write_text("} not metrics {\n")
    counted.end(0)
    MetricsFile(str(path), "backup").write(counted.snapshot())
    assert read(path.read_bytes())["kbackup_success", ()] == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["config"], 0), (["backup", "--no-such-flag"], 2), (["info", "--archive=/nonexistent/kbackup"], 10)],
)
def test_every_command_writes_it_also_when_it_fails(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.prom"
    assert main([*arguments, f"--metrics-file={path}"]) == code
    values = read(path.read_bytes())
    assert values["kbackup_exit_code", ()] == code
    assert values["kbackup_success", ()] == (code == 0)
    assert [k for k in values if k[0] == "kbackup_errors_total"] != [] or code == 0
    assert f'command="{arguments[0]}"' in path.read_text()


@pytest.mark.parametrize("name", ["not/there.prom", ".", "pipe"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As is one that is no plain file: the rename at the end would replace /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    assert main(["config", "--metrics-file", str(tmp_path / name)]) == 2
    told = capsys.readouterr()
    assert "can't write the metrics file" in told.err
    assert told.out == ""


def test_a_file_that_fails_at_the_end_turns_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: MetricsFile, snapshot: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MetricsFile, "write", full)
    monkeypatch.chdir(tmp_path)
    assert main(["config", "--metrics-file", str(tmp_path / "x.prom")]) == 1
    assert "the metrics were not written" in capsys.readouterr().err


def test_counting_from_many_threads_loses_nothing() -> None:
    own = Counted()

    def count() -> None:
        for _ in range(1000):
            own.add("kbackup_records_total")

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (value,) = [v for (name, _), v in samples(own.snapshot()).items() if name == "kbackup_records_total"]
    assert value == 8000


# Metrics of a process with several archives, and of topics that vanish.


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


# The endpoints for metrics and health.


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def status_of(url: str) -> int:
    status, _, _ = get(url)
    return status


def test_health_and_metrics_are_served() -> None:
    clock = Clock()
    health = Health(60, clock)
    counted.put("kbackup_restore_point", 7)
    with Server("127.0.0.1:0", health) as server:
        url = f"http://127.0.0.1:{server.port}"
        status, kind, body = get(f"{url}/metrics")
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        assert re.search(r"^kbackup_restore_point\{.*\} 7\.0$", body, re.MULTILINE)
        assert status_of(f"{url}/healthz") == 200
        clock.now = 61
        health.failed(f"source cluster did not answer\n{HOSTILE}")
        status, _, body = get(f"{url}/healthz")
        assert status == 503
        assert "stale: no round has ended well for 61 s; last error: source cluster did not answer" in body
        assert body.count("\n") == 1
        health.record_success()
        assert status_of(f"{url}/healthz") == 200
        assert status_of(f"{url}/etc/passwd") == 404
        with pytest.raises(UsageError, match="can't listen on"), Server(f"127.0.0.1:{server.port}", health):
            pytest.fail("two on one port")


def test_process_is_well_only_where_each_component_is() -> None:
    clock = Clock()
    joint = JointHealth(60, clock)
    take, apply = joint.add_component("take A"), joint.add_component("apply A->B")
    assert joint.answer() == (200, "take A: ok: 0 s\napply A->B: ok: 0 s\n")
    clock.now = 61
    apply.record_success()
    take.failed("source cluster did not answer")
    status, text = joint.answer()
    assert status == 503
    assert text.splitlines() == [
        "take A: stale: no round has ended well for 61 s; last error: source cluster did not answer",
        "apply A->B: ok: 0 s",
    ]
    take.record_success()
    status, _ = joint.answer()
    assert status == 200


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("[::1]:1", ("::1", 1)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_an_address_to_listen_at_has_a_port_and_maybe_a_host(listen: str, address: tuple[str, int]) -> None:
    assert parse_address(listen) == address


@pytest.mark.parametrize("listen", ["", "9464", "host", "host:", "host:x", "host:70000", "host:-1"])
def test_an_address_without_a_port_is_refused(listen: str) -> None:
    with pytest.raises(UsageError, match="can't listen on"):
        parse_address(listen)
