"""Compare three backups of a real cluster with the cluster, record by record."""

from __future__ import annotations

import secrets
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.models import TopicState
from kbackup.archive.reader import open_archive
from kbackup.formats.index import decode_group_offsets
from scripts.dev.kafka import Broker
from tests.integration.conftest import SPLIT_RECORDS, Archive, Kbackup
from tests.integration.topics import ODD_RECORDS, produce
from tests.integration.zoo import FIRST, POSITIONS, SECOND, Zoo
from tests.support.truth import archive_records, documented_records
from tests.unit.formats.reference import a_record


@pytest.mark.parametrize(("moment", "name"), [*((1, name) for name in FIRST), *((2, name) for name in SECOND)])
def test_restore_point_has_what_came_and_keeps_what_went(zoo: Zoo, moment: int, name: str) -> None:
    point = open_archive(zoo.archive.store).restore_point(moment)
    assert archive_records(zoo.archive.store, zoo.topic(name), point) == zoo.held(name, moment)


@pytest.mark.parametrize("name", SECOND)
def test_files_of_each_partition_lead_to_every_record_and_group(zoo: Zoo, name: str) -> None:
    store, folder = zoo.archive.store, layout.topic_dir(zoo.topic(name), 2 if name == "reborn" else 1)
    assert documented_records(store, folder) == zoo.held(name, 2)
    for partition in zoo.held(name, 2):
        key = layout.group_offsets_key(folder, partition)
        expected = {
            zoo.group(position): at[zoo.topic(name), partition].offset for position, at in zoo.moments[2].groups.items()
        }
        assert decode_group_offsets(store.get(key), key) == expected


def test_odd_records_are_in_the_archive_as_they_were_sent(zoo: Zoo) -> None:
    expected = []
    for n, (key, value, stamp, headers) in enumerate([*ODD_RECORDS, *ODD_RECORDS]):
        kind, at = (-2, None) if stamp == -1 else (0, stamp)
        expected.append(
            a_record(n, kind=kind, timestamp=at, key=key, value=value, headers=[(k.decode(), v) for k, v in headers])
        )
    assert archive_records(zoo.archive.store, zoo.topic("odd"))[0] == expected


def test_the_topics_are_what_the_tests_need(zoo: Zoo) -> None:
    """Without these the tests around would prove nothing."""
    first = {name: zoo.held(name, 1) for name in FIRST}
    compacted = [r.offset for r in first["compacted"][0]]
    assert any(b - a > 1 for a, b in pairwise(compacted)), "no hole"
    assert None in [r.value for r in first["compacted"][0]], "no tombstone"
    assert {r.kind for r in first["stamped"][0]} == {1}
    assert {r.kind for r in first["odd"][0]} == {0, -2}
    assert max(len(r.value or b"") for r in first["big"][0]) == 5 << 20
    assert [len(first["ledger"][p]) for p in range(3)] == [23, 7, 0]
    assert [r.offset for r in first["trimmed"][0]] == list(range(25, 60))
    assert first["trimmed"][1] == []
    assert [len(zoo.held("growing", 2)[p]) for p in range(4)] == [45, 40, 8, 0]


def test_archived_ends_are_positions_not_last_records(zoo: Zoo) -> None:
    """Transaction markers and aborted records have offsets too, also at the very end of a log."""
    head = open_archive(zoo.archive.store).restore_point(1)
    (ledger,) = [t for t in head.topics if t.name == zoo.topic("ledger")]
    assert [(p.start, p.end, p.log_end) for p in ledger.partitions] == [(0, 52, 52), (0, 13, 13), (0, 10, 10)]
    (trimmed,) = [t for t in head.topics if t.name == zoo.topic("trimmed")]
    assert [(p.start, p.end, p.records) for p in trimmed.partitions] == [(25, 60, 35), (10, 10, 0)]
    # an open transaction comes with the run after its commit
    (state,) = [t for t in head.topics if t.name == zoo.topic("open")]
    assert (state.partitions[0].end, state.partitions[0].log_end) == (40, 55)
    assert len(zoo.held("open", 1)[0]) == 40
    assert [r.value for r in zoo.held("open", 2)[0][40:]] == [f"open-{n}".encode() for n in range(15)]


def test_big_partition_is_cut_and_every_record_is_there_once(zoo: Zoo) -> None:
    archive = open_archive(zoo.archive.store)
    own = [s for s in archive.added(0, 1) if s.topic == zoo.topic("long")]
    pieces = -(-3_700 // SPLIT_RECORDS)
    assert {3_700 * n // pieces for n in range(pieces)} <= {s.first for s in own}
    assert len(own) > pieces, "segments rotate within a piece"
    assert all(a.last + 1 == b.first for a, b in pairwise(own))


def test_empty_partitions_and_configs_of_topics_are_in_the_archive(zoo: Zoo) -> None:
    store, archive = zoo.archive.store, open_archive(zoo.archive.store)
    for name, partition in (("odd", 1), ("ledger", 2), ("trimmed", 1), ("growing", 3)):
        key = layout.partition_index_key(layout.topic_dir(zoo.topic(name)), partition)
        assert store.get(key) == b"\1"
    metadata = {t.name: t for t in archive.metadata(archive.restore_point(2)).topics}
    assert metadata[zoo.topic("growing")].partitions == 4
    assert metadata[zoo.topic("stamped")].configs == {"message.timestamp.type": "LogAppendTime"}
    assert metadata[zoo.topic("compacted")].configs["cleanup.policy"] == "compact"
    assert {t.replication_factor for t in metadata.values()} == {1}


def test_runs_add_only_what_is_new(zoo: Zoo) -> None:
    first, second, third = (moment.report for moment in zoo.moments)
    count = sum(len(r) for records in zoo.moments[0].records.values() for r in records.values())
    assert first["totals"]["records"] == count
    new = {"open": 15, "ledger": 6, "long": 200, "growing": 13, "reborn": 30, "overtaken": 20, "late": 80}
    assert second["totals"]["records"] == sum(new.values())
    assert (third["totals"]["records"], third["totals"]["segments"]) == (0, 0)
    assert [r["parent"] for r in (first, second, third)] == [None, 1, 2]
    archive = open_archive(zoo.archive.store)
    old, new_ = archive.restore_point(2), archive.restore_point(3)
    expected = [replace(topic, captured=3) if topic.state == "present" else topic for topic in old.topics]
    assert list(map(_without_times, new_.topics)) == list(map(_without_times, expected))


def _without_times(topic: TopicState) -> TopicState:
    """Return a topic without the times at which its compacted partitions were looked at, which each run moves on."""
    partitions = [replace(partition, seen_at="") for partition in topic.partitions]
    return replace(topic, partitions=tuple(partitions))


def test_records_that_went_before_the_backup_are_reported_as_losses(zoo: Zoo) -> None:
    first, second, third = (moment.report for moment in zoo.moments)
    assert (first["losses"], third["losses"]) == ([], [])
    found = {loss["kind"]: loss for loss in second["losses"]}
    assert len(second["losses"]) == 2
    overtaken, reborn = found["retention"], found["recreated"]
    assert (overtaken["topic"], overtaken["partition"]) == (zoo.topic("overtaken"), 0)
    assert (overtaken["start"], overtaken["end"]) == (40, 70)
    assert reborn["topic"] == zoo.topic("reborn")
    assert [w for w in second["warnings"] if zoo.topic("gone") in w]


def test_recreated_topic_never_mixes_with_the_old_one_and_a_deleted_one_is_kept(zoo: Zoo) -> None:
    store, archive = zoo.archive.store, open_archive(zoo.archive.store)
    old, new = (next(t for t in archive.restore_point(n).topics if t.name == zoo.topic("reborn")) for n in (1, 2))
    assert (old.incarnation, new.incarnation) == (1, 2)
    assert old.id != new.id
    assert len(new.partitions) == 1
    assert documented_records(store, layout.topic_dir(zoo.topic("reborn"))) == zoo.held("reborn", 1)
    assert archive_records(store, zoo.topic("reborn"), archive.restore_point(1)) == zoo.held("reborn", 1)
    head = archive.restore_point(3)
    (state,) = [t for t in head.topics if t.name == zoo.topic("gone")]
    assert (state.state, state.captured) == ("deleted", 1)
    assert archive_records(store, zoo.topic("gone"), head) == zoo.held("gone", 1)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("moment", [1, 2])
def test_groups_are_captured_with_their_metadata(zoo: Zoo, position: str, moment: int) -> None:
    archive = open_archive(zoo.archive.store)
    groups = {g.group: g for g in archive.groups(archive.restore_point(moment)).groups}
    found = {(o.topic, o.partition): (o.offset, o.metadata) for o in groups[zoo.group(position)].offsets}
    assert found == zoo.moments[moment - 1].groups[position]


def test_records_are_archived_beside_a_torn_metadata_log(
    broker: Broker, kbackup: Kbackup, archive: Archive, tmp_path: Path
) -> None:
    topic = f"beside-{secrets.token_hex(4)}"
    broker.create_topic(topic, 1)
    produce(broker, topic, 0, [b"one", b"two"])
    log = tmp_path / "__cluster_metadata-0"
    shutil.copytree(broker.folder / "node-0" / "data" / log.name, log)
    newest = max(log.glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-1])
    source = ("--set", f"source.metadata.log.dir={tmp_path}")
    report = kbackup.backup(archive, "--topics", topic, *source, code=3)
    assert (report["totals"]["records"], report["losses"]) == (2, [])
    assert report["damage"] == [f"the metadata log in {tmp_path}"]
    assert any(f"{newest.name}: byte " in warning for warning in report["warnings"])
    shutil.copy(broker.folder / "node-0" / "data" / log.name / newest.name, newest)
    assert kbackup.backup(archive, "--topics", topic, *source)["damage"] == []
