"""`verify` on what a real backup wrote: tasks on Spark, objects on a real S3 server."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from kbackup import cli
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from tests.golden.java_archive import ROOT as JAVA
from tests.integration.backed_up import BackedUp, runner


def test_a_backup_verifies_deep_and_quick(made: BackedUp, spark: SparkSession) -> None:
    run = runner(spark, made.config)
    code, deep = run("verify")
    assert (code, deep["findings"], deep["notes"]) == (0, [], [])
    assert (deep["read_records"], deep["restore_points"]) == (180, [1, 2])
    code, quick = run("verify", "--quick")
    assert (code, quick["findings"], quick["notes"]) == (0, [], []), "the store tells every checksum"
    assert quick["read_records"] == 0


def test_other_bytes_of_the_same_size(made: BackedUp, spark: SparkSession) -> None:
    store, run = made.store, runner(spark, made.config)
    folder = f"topics/{made.topic}/"
    records = [e.key for e in store.list(folder) if "_records" in e.key]
    index = next(e.key for e in store.list(folder) if e.key.endswith("_index"))
    before = {key: store.get(key) for key in (records[-1], index, f"{folder}index_partition_000")}
    try:
        for key, data in before.items():
            store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
        store.put(f"{folder}left.over", b"12345")
        code, quick = run("verify", "--quick")
        assert code == 13
        assert {f["file"] for f in quick["findings"]} == {records[-1], index}
        assert all("has checksum" in f["what"] and f["hint"] for f in quick["findings"])
        code, deep = run("verify")
        assert code == 13
        assert {f["file"] for f in deep["findings"]} == before.keys()
        assert (deep["notes"][0]["file"], deep["orphan_bytes"]) == (f"{folder}left.over", 5)
        assert deep["read_records"] < 180, "a damaged segment ends where it is damaged"
    finally:
        for key, data in before.items():
            store.put(key, data)
        assert store.delete([f"{folder}left.over"]) == []


def test_verify_reports_its_progress(made: BackedUp, spark: SparkSession) -> None:
    class Counting(Silent):
        last = (0, 0)
        phases: list[str] = []  # noqa: RUF012 (one instance)

        def phase(self, name: str) -> None:
            self.phases.append(name)

        def progress(self, records: int, size: int, expected: int) -> None:
            self.last = (records, expected)

    listener = Counting()
    report = verify(made.store, "1", False, lambda: spark, listener)
    assert (report.read_records, report.findings) == (130, ())
    assert listener.last == (130, 130)
    assert listener.phases == ["list objects", "restore points", "objects", "derived files", "read segments"]


def test_a_folder_of_the_java_tool(made: BackedUp, spark: SparkSession) -> None:
    code, report = runner(spark, made.config)("verify", str(JAVA / "archive"))
    assert (code, report["findings"], report["read_records"]) == (0, [], 385)


def test_a_store_that_denies(made: BackedUp, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--set", "s3.secret_access_key=wrong"]
    assert cli.main(["verify", "--quick", "--config", str(made.config), *wrong]) == 14
    err = capsys.readouterr().err
    assert "hint: " in err
    assert "wrong" not in err
