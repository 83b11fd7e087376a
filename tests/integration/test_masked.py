"""Records on their way out through a function: into a cluster, into files, and compared with both."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient

from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.truth import Position, commit, positions, read_topic

SECRET = "0123456789abcdef0123456789abcdef"

MASKS = f"""
import pyarrow as pa
import pyarrow.compute as pc

from kbackup.masking import fixed, hashed


def mask(batch, topic):
    assert topic.startswith("people-"), topic
    batch = hashed(batch, ["key", "value.name"], {SECRET!r})
    batch = fixed(batch, "value.note", "masked")
    return batch.filter(pc.not_equal(pc.bit_wise_and(batch.column("offset"), 3), 0))


def failing(batch):
    if pc.max(batch.column("offset")).as_py() < 50:
        return batch
    names = {{}}
    return names["Jane"]
"""

RECORDS = 120


@dataclass(frozen=True)
class People:
    """An archive of a topic of one partition whose values are JSON, and a group that stands at an offset which the
    mask leaves out."""

    archive: Archive
    topic: str
    group: str
    file: Path

    def option(self, function: str) -> str:
        return f"--transform={self.file}:{function}"


def digest(text: str) -> str:
    return hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()


def person(number: int) -> dict[str, Any]:
    return {"name": f"person {number % 10}", "note": f"note {number}", "id": number}


def masked(number: int) -> dict[str, Any]:
    return {"name": digest(f"person {number % 10}"), "note": "masked", "id": number}


LEFT = [number for number in range(RECORDS) if number % 4]


@pytest.fixture(scope="module")
def people(
    broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], tmp_path_factory: pytest.TempPathFactory
) -> People:
    file = tmp_path_factory.mktemp("masks") / "mask.py"
    file.write_text(MASKS)
    topic = f"people-{secrets.token_hex(4)}"
    broker.create_topic(topic)
    for number in range(RECORDS):
        topics.produce(broker, topic, 0, [json.dumps(person(number)).encode()], key=f"person {number % 10}".encode())
    group = f"readers-{topic}"
    commit(broker.bootstrap, group, {(topic, 0): Position(8)})
    archive = new_archive()
    kbackup.backup(archive, "-t", topic, "-g", group)
    return People(archive, topic, group, file)


@pytest.fixture(scope="module")
def restored(people: People, kbackup: Kbackup) -> dict[str, Any]:
    """The report of a masked restore into `<topic>-masked`."""
    return kbackup.restore(
        people.archive,
        *("--map", f"{people.topic}={people.topic}-masked", "--map-group", f"{people.group}={people.group}-masked"),
        *("--restore-id", f"{people.topic}-masked", people.option("mask")),
    )


def test_masked_records_stand_in_for_the_archived_ones(
    broker: Broker, people: People, restored: dict[str, Any]
) -> None:
    (records,) = read_topic(broker.bootstrap, f"{people.topic}-masked").values()
    assert [json.loads(record.value or b"") for record in records] == [masked(number) for number in LEFT]
    assert [record.key for record in records] == [digest(f"person {number % 10}").encode() for number in LEFT]


def test_what_was_left_out_is_counted_and_the_function_is_named(people: People, restored: dict[str, Any]) -> None:
    assert restored["records"] == len(LEFT)
    assert restored["transform"]["left_out"] == {people.topic: RECORDS - len(LEFT)}
    assert restored["transform"]["name"] == "mask.py:mask"
    assert restored["transform"]["sha256"] == hashlib.sha256(people.file.read_bytes()).hexdigest()
    assert (restored["status"], restored["missing"]) == ("restored", [])


def test_a_group_on_a_record_that_was_left_out_goes_to_the_next_one(
    broker: Broker, people: People, restored: dict[str, Any]
) -> None:
    (records,) = read_topic(broker.bootstrap, f"{people.topic}-masked").values()
    expected = records[LEFT.index(9)].offset
    assert positions(broker.bootstrap, f"{people.group}-masked")[f"{people.topic}-masked", 0].offset == expected


def test_a_masked_restore_is_as_archived_through_the_same_function_alone(
    kbackup: Kbackup, people: People, restored: dict[str, Any]
) -> None:
    verify = ["verify", people.archive.url, "--against", "target"]
    of_restore = [*verify, "--restore-id", f"{people.topic}-masked"]
    same = kbackup.run(*of_restore, "--groups", people.option("mask"))
    assert (same["findings"], same["records"], same["same"]) == ([], len(LEFT), len(LEFT))
    refused = kbackup.run(*of_restore, code=10)
    assert "was begun with transform mask.py:mask" in refused["error"]["message"]
    by_name = [*verify, "-t", people.topic, "--map", f"{people.topic}={people.topic}-masked"]
    assert kbackup.run(*by_name, people.option("mask"))["findings"] == []
    assert kbackup.run(*by_name, code=3)["findings"]


def test_a_finished_restore_is_another_one_with_another_function(
    kbackup: Kbackup, people: People, restored: dict[str, Any]
) -> None:
    again = ["--map", f"{people.topic}={people.topic}-masked", "--map-group", f"{people.group}={people.group}-masked"]
    refused = kbackup.restore(people.archive, *again, "--restore-id", f"{people.topic}-masked", code=10)
    assert "now without one" in refused["error"]["message"]


def test_nothing_of_a_unit_is_there_whose_function_fails(broker: Broker, kbackup: Kbackup, people: People) -> None:
    target = f"{people.topic}-failing"
    outcome = kbackup(
        "restore", people.archive.url, "--map", f"{people.topic}={target}", "--no-groups", people.option("failing")
    )
    assert outcome.code == 2, str(outcome)
    message = outcome.document["error"]["message"]
    line = MASKS.splitlines().index('    return names["Jane"]') + 1
    assert (
        f"transform mask.py:failing failed at line {line}, for the records of {people.topic}-0 from offset" in message
    )
    assert message.endswith("KeyError: 'Jane'")
    assert "Traceback" not in outcome.err
    assert sum(map(len, read_topic(broker.bootstrap, target).values())) == 0


def test_records_that_are_left_out_are_gaps_of_logs_with_the_same_offsets(
    broker: Broker, kbackup: Kbackup, people: People
) -> None:
    target = f"{people.topic}-same"
    report = kbackup.restore(
        people.archive,
        *("--same-offsets", "--map", f"{people.topic}={target}", "--map-group", f"{people.group}={people.group}-same"),
        *("--restore-id", target, people.option("mask")),
    )
    (records,) = read_topic(broker.bootstrap, target).values()
    assert [record.offset for record in records] == LEFT
    assert [json.loads(record.value or b"") for record in records] == [masked(number) for number in LEFT]
    assert report["transform"]["left_out"] == {people.topic: RECORDS - len(LEFT)}
    (fill,) = report["fills"]
    assert fill["gaps"] == RECORDS - len(LEFT)


def test_a_dry_run_writes_nothing_and_says_that_records_may_be_left_out(
    broker: Broker, kbackup: Kbackup, people: People
) -> None:
    target = f"{people.topic}-dry"
    outcome = kbackup(
        "restore", people.archive.url, "--dry-run", "--map", f"{people.topic}={target}", people.option("mask")
    )
    assert outcome.code == 0, str(outcome)
    assert "all records go through mask.py:mask (sha256 " in outcome.err
    assert target not in AdminClient(broker.client()).list_topics(timeout=30).topics


def test_exported_files_have_masked_records_and_keep_their_function(
    kbackup: Kbackup, people: People, tmp_path: Path
) -> None:
    export = ["export", "--archive", people.archive.url, "--parquet", str(tmp_path / "lake")]
    (report,) = kbackup.run(*export, people.option("mask"))["exports"]
    (table,) = report["tables"]
    assert (table["records"], table["left_out"]) == (len(LEFT), RECORDS - len(LEFT))
    rows = pq.ParquetDataset(tmp_path / "lake").read(["offset", "value"]).sort_by("offset").to_pylist()
    assert [row["offset"] for row in rows] == LEFT
    assert [json.loads(row["value"]) for row in rows] == [masked(number) for number in LEFT]
    refused = kbackup.run(*export, code=1)
    assert "was begun with transform mask.py:mask" in refused["error"]["message"]
