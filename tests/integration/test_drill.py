"""`drill` on real parts: what it makes, compares and reports, and that nothing of it is left whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.archive.reader import open_archive
from kbackup.cli.drill import drill_page
from kbackup.config.models import Backup, Restore
from kbackup.errors import ClusterError
from kbackup.jobs.drill.job import DrillRequest, DrillTools, drill
from kbackup.jobs.drill.report import DrillReport, store_report
from kbackup.jobs.restore.job import RestoreResources, RestoreScreen, restore
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.status.job import archive_status
from kbackup.metrics.registry import Silent
from scripts.dev.kafka import Broker
from tests.integration.backed_up import BackedUp, Run, runner
from tests.integration.conftest import run_command
from tests.integration.topics import delete_topic, produce
from tests.support.truth import group_names, log_ends, positions, read_topic


@pytest.fixture
def run(made: BackedUp, spark: SparkSession, tmp_path: Path) -> Run:
    """A drill on the session that is there; its exit code and JSON document."""
    return partial(runner(spark, made.config), "drill", "--on-source", "--report", str(tmp_path / "reports"))


@pytest.fixture(autouse=True)
def nothing_is_left(broker: Broker) -> Iterator[None]:
    """There is no topic and no group that was not there before."""
    before = _names(broker)
    yield
    assert _names(broker) <= before


def _names(broker: Broker) -> set[str]:
    admin = AdminClient(broker.client())
    topics = {name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")}  # the broker's own
    return topics | group_names(admin)


def _stored(made: BackedUp, drill_id: str) -> DrillReport:
    key = layout.drill_key(drill_id, layout.REPORT)
    return load(DrillReport, made.store.get(key), key)


def _only_page(folder: Path) -> str:
    (page,) = (folder / "reports").glob("*.html")
    return page.read_text("utf-8")


def test_a_drill_passes_and_leaves_nothing_behind(run: Run, made: BackedUp, broker: Broker, tmp_path: Path) -> None:
    before = positions(broker.bootstrap, made.group), log_ends(broker.bootstrap, made.topic)
    code, report = run()
    assert (code, report["result"], report["findings"], report["error"]) == (0, "passed", [], None)
    assert (report["left"], report["kept"]) == ([], [])
    compared = report["comparison"]
    assert (compared["records"], compared["same"], report["restored_records"]) == (180, 180, 180)
    assert {(g["source_group"], g["ok"]) for g in compared["groups"]} == {(made.group, True)}
    assert all(g["group"].startswith(report["prefix"]) for g in compared["groups"])
    assert compared["topics"][0]["target"] == report["prefix"] + made.topic
    assert report["restore_point"] == 2
    assert (positions(broker.bootstrap, made.group), log_ends(broker.bootstrap, made.topic)) == before
    drill_id = report["drill_id"]
    files = {path.name for path in (tmp_path / "reports").iterdir()}
    assert files == {f"{drill_id}.json", f"{drill_id}.html"}
    assert _stored(made, drill_id).result == "passed"
    page = _only_page(tmp_path)
    assert made.store.get(layout.drill_key(drill_id, layout.PAGE)).decode() == page
    assert made.topic in page
    assert "180 records in 1 topic, compared one by one" in page

    code, report = run("--restore-point", "1", "--no-groups")
    assert (code, report["restore_point"], report["comparison"]["records"]) == (0, 1, 130)
    assert report["comparison"]["groups"] == []


def test_a_drill_with_the_same_offsets_compares_them_and_deletes_everything(
    run: Run, made: BackedUp, broker: Broker
) -> None:
    code, report = run("--same-offsets", "--keep", "--prefix", "same.")
    scratch = f"same.{made.topic}"
    try:
        assert (code, report["result"]) == (0, "passed")
        assert report["comparison"]["same"] == 180
        assert log_ends(broker.bootstrap, scratch) == log_ends(broker.bootstrap, made.topic)
        place = (scratch, 0)
        archived = positions(broker.bootstrap, made.group)[made.topic, 0]
        assert positions(broker.bootstrap, f"same.{made.group}")[place] == archived
    finally:
        delete_topic(broker, scratch)
        admin = AdminClient(broker.client())
        admin.delete_consumer_groups([f"same.{made.group}"])[f"same.{made.group}"].result(30)
    code, report = run("--same-offsets")
    assert (code, report["result"], report["left"]) == (0, "passed", [])


def test_a_drill_puts_records_through_the_function_of_restores(
    run: Run, made: BackedUp, broker: Broker, tmp_path: Path
) -> None:
    """Its comparison does as well: what is masked, or left out, is no difference."""
    file = tmp_path / "mask.py"
    file.write_text(
        "import pyarrow.compute as pc\n"
        "from kbackup.masking import hashed\n"
        "def mask(batch):\n"
        "    batch = hashed(batch, ['key', 'value'], '0123456789abcdef')\n"
        "    return batch.filter(pc.not_equal(pc.bit_wise_and(batch.column('offset'), 1), 0))\n"
        "def failing(batch):\n"
        "    raise KeyError('Jane')\n"
    )
    scratch = f"masked.{made.topic}"
    try:
        code, report = run("--keep", "--prefix", "masked.", "--set", f"restore.transform={file}:mask")
        assert (code, report["result"], report["findings"]) == (0, "passed", [])
        assert (report["restored_records"], report["comparison"]["records"], report["comparison"]["same"]) == (90,) * 3
        assert {(group["source_group"], group["ok"]) for group in report["comparison"]["groups"]} == {
            (made.group, True)
        }
        records = [record for each in read_topic(broker.bootstrap, scratch).values() for record in each]
        assert len(records) == 90
        assert {len(record.key or b"") for record in records} == {64}
    finally:
        delete_topic(broker, scratch)
        admin = AdminClient(broker.client())
        admin.delete_consumer_groups([f"masked.{made.group}"])[f"masked.{made.group}"].result(30)
    code, report = run("--set", f"restore.transform={file}:failing")
    assert (code, report["result"], report["left"]) == (2, "failed", [])
    assert f"transform mask.py:failing failed at line 7, for the records of {made.topic}-" in report["error"]["message"]


def test_kept_topics_and_groups_are_reported(run: Run, made: BackedUp, broker: Broker) -> None:
    code, report = run("--keep", "--prefix", "kept.")
    try:
        assert (code, report["result"]) == (0, "passed")
        assert report["kept"] == [f"topic kept.{made.topic}", f"group kept.{made.group}"]
        again, refused = run("--prefix", "kept.")
        assert (again, refused["result"]) == (1, "failed")
        assert f"'kept.' is not free: topic kept.{made.topic}" in refused["error"]["message"]
        assert sum(log_ends(broker.bootstrap, f"kept.{made.topic}").values()) >= 180
    finally:
        delete_topic(broker, f"kept.{made.topic}")
        admin = AdminClient(broker.client())
        admin.delete_consumer_groups([f"kept.{made.group}"])[f"kept.{made.group}"].result(30)


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        ([], 1, "which was backed up"),
        (["--bootstrap-server", "localhost:1"], 14, "target cluster at localhost:1 did not answer"),
        (["--on-source", "--topic", "none-of-these"], 2, "none-of-these"),
    ],
)
def test_a_drill_that_could_not_run_says_nothing_about_the_archive(
    made: BackedUp, spark: SparkSession, options: list[str], code: int, reason: str
) -> None:
    outcome = run_command(spark, made.config, ["drill", *options])
    assert (outcome.code, reason in outcome.err) == (code, True), outcome.err
    status = archive_status(open_archive(made.store), Backup(max_age=1e9))
    about_drills = [finding for finding in status.findings if finding.subject == "drill"]
    assert "may not be restorable" not in str(status.findings)
    if code == 2:
        return  # a command line that can't be used is told on stderr alone
    (finding,) = about_drills
    assert finding.level == "warning"
    assert "could not run, so it says nothing about the archive" in finding.message
    assert reason in finding.message


@pytest.mark.parametrize("prefix", ["", "a", "<b>drill", "drill/", "drill\n", "x" * 101])
def test_prefixes_that_can_not_be(run: Run, prefix: str) -> None:
    code, document = run("--prefix", prefix)
    assert (code, "can't be used" in document["error"]["message"]) == (2, True)


@dataclass
class Drilling:
    """Drills in which something happens once the records are restored. `report` is what the last one published."""

    made: BackedUp
    broker: Broker
    spark: SparkSession
    report: DrillReport | None = None

    def __call__(self, prefix: str, meanwhile: Callable[[], object]) -> DrillReport:
        def restore_first(
            request: RestoreRequest, resources: RestoreResources, screen: RestoreScreen | None = None
        ) -> RestoreReport:
            restored = restore(request, resources, screen)
            meanwhile()
            return restored

        wanted = DrillRequest(RestoreRequest.of(Restore()), prefix, on_source=True)
        store, target = self.made.store, self.broker.client()
        tools = DrillTools(restore=restore_first)
        return drill(wanted, target, store, store, lambda: self.spark, Silent(), self._publish, tools)

    def _publish(self, report: DrillReport) -> None:
        self.report = report
        store_report(self.made.store, report, drill_page(report))

    @property
    def page(self) -> str:
        assert self.report is not None
        return self.made.store.get(layout.drill_key(self.report.drill_id, layout.PAGE)).decode()


@pytest.fixture
def drilling(made: BackedUp, broker: Broker, spark: SparkSession) -> Drilling:
    return Drilling(made, broker, spark)


def test_a_topic_that_goes_meanwhile_is_a_finding(drilling: Drilling, made: BackedUp, broker: Broker) -> None:
    report = drilling("meanwhile.", lambda: delete_topic(broker, f"meanwhile.{made.topic}"))
    assert report.result == "failed"
    assert report.findings[0] == f"topic meanwhile.{made.topic} is not in the target cluster"
    assert report.comparison is not None
    assert report.comparison.counts == {"missing": 180}
    assert 'class="result failed"' in drilling.page


def test_a_record_that_nobody_restored_is_a_finding(drilling: Drilling, made: BackedUp, broker: Broker) -> None:
    report = drilling("more.", lambda: produce(broker, f"more.{made.topic}", 1, [b"again"]))
    assert report.result == "failed"
    assert "1 after the last restored one" in report.findings[0]


def test_an_error_on_the_way_is_reported(drilling: Drilling, made: BackedUp) -> None:
    def fail() -> None:
        raise ClusterError("the target <gave> up", "look after it")

    report = drilling("error.", fail)
    assert (report.result, report.left) == ("failed", ())
    assert report.error is not None
    assert report.error.message == "the target <gave> up"
    assert _stored(made, report.drill_id).error == report.error
    assert "the target &lt;gave&gt; up" in drilling.page


def test_an_interrupt_cleans_up(drilling: Drilling, made: BackedUp) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drilling("interrupted.", interrupt)
    assert drilling.report is not None
    assert drilling.report.error is not None
    assert drilling.report.error.exit_code == 130
    assert _stored(made, drilling.report.drill_id).result == "interrupted"
    assert 'class="result interrupted"' in drilling.page
