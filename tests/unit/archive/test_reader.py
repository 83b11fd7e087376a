"""Opening an archive and reading its documents, by many threads too, and documents that somebody forged."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.documents import Catalog, Latest, TableRef, Tables
from kbackup.archive.catalog.retention import expire_points
from kbackup.archive.catalog.tables import SEGMENTS
from kbackup.archive.derived import derived_files
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import ArchiveInfo, Manifest, TopicState, dump, load
from kbackup.archive.query.content import captured_groups, content_of
from kbackup.archive.query.groups import groups_overview
from kbackup.archive.query.java import java_content, java_topics
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import begin_writing, open_or_create
from kbackup.errors import CorruptError, KbackupError, NoArchiveError, UsageError
from kbackup.kafka.control.groups import probe_groups
from kbackup.store import open_store
from kbackup.store.base import is_key
from kbackup.store.file import FileStore
from kbackup.util.system import in_threads
from kbackup.util.times import now
from tests.support.archives import commit_point, group_at, make_archive
from tests.support.faulty_store import FaultyStore
from tests.support.made_segments import TOPIC, committed, state, target, write
from tests.support.memory_store import MemoryStore


def test_an_archive_without_a_restore_point_says_so(store: FaultyStore) -> None:
    with pytest.raises(NoArchiveError, match="there is no archive at "):
        open_archive(store)
    open_or_create(store)
    archive = open_archive(store)
    assert archive.head is None
    with pytest.raises(NoArchiveError, match="has no restore point"):
        archive.restore_point("latest")


def test_restore_points_in_order_and_by_number(store: FaultyStore) -> None:
    committed(store, 1)
    committed(store, 3)
    committed(store, 12)
    archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [1, 3, 12]
    assert archive.head == archive.restore_point("latest") == archive.restore_point(12)
    assert archive.restore_point("3").previous == 1
    for unknown in (2, "2", 4, "03", "9" * 5000, "newest"):
        with pytest.raises(UsageError, match=f"there is no restore point {unknown}"):
            archive.restore_point(unknown)


def test_a_run_that_has_only_begun_adds_no_restore_point(store: FaultyStore) -> None:
    committed(store, 1)
    with HeldLease(store, "kbackup test", 60) as lease:
        begin_writing(store, lease, "backup")
        archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [1]
    assert archive.state.open_run is not None


def test_an_opened_archive_stays_at_its_catalog(store: FaultyStore) -> None:
    first, _ = committed(store, 1)
    reader = open_archive(store)
    committed(store, 2)
    assert [p.number for p in reader.restore_points] == [1]
    reader.reopen()
    assert [p.number for p in reader.restore_points] == [1, 2]
    assert [p.number for p in first.restore_points] == [1]


@pytest.mark.exhaustive
def test_reopen_reads_only_new_objects(store: FaultyStore) -> None:
    """Nothing but a LIST where there is no later catalog; then no table twice."""
    for number in range(1, 90):
        segments = write(store, target(threshold=1 << 20), range(10 * number, 10 * number + 10))
        committed(store, number, segments=segments, topics=[state((0, 0, 10), number=number)])
    reader = open_archive(store)
    reader.restore_point("latest")
    assert [s.first for s in reader.added(85, 89)] == [860, 870, 880, 890]
    before = set(store.calls)
    store.calls.clear()
    reader.reopen()
    assert len(reader.added(85, 89)) == 4
    assert store.calls == [], "LISTs are not among them"
    segments = write(store, target(threshold=1 << 20), range(900, 910))
    committed(store, 90, segments=segments, topics=[state((0, 0, 10), number=90)])
    store.calls.clear()
    reader.reopen()
    assert [s.first for s in reader.added(89, 90)] == [900]
    assert store.calls[0] == ("get", layout.catalog_key(reader.state.number))
    assert before.isdisjoint(store.calls)
    assert len(reader.segments(reader.restore_point("latest"))) == 90


def test_a_restore_point_that_was_let_go_is_called_so(store: FaultyStore) -> None:
    for number in (1, 2, 3):
        committed(store, number)
    archive = open_archive(store)
    commit(store, archive.committed, lambda s: expire_points(s, {2}), Author("expire", "another", "2 was let go"))
    with pytest.raises(UsageError, match="restore point 2 expired or was lost") as raised:
        open_archive(store).restore_point(2)
    assert "the nearest is 1 and 3" in raised.value.hint


def test_own_groups_of_an_old_archive_are_not_read(store: FaultyStore) -> None:
    own = [
        layout.mirror_group("A", "B"),
        layout.progress_group("drill-7"),
        layout.progress_group("drill-7", 3),
        layout.reader_group("backup", "r"),
        layout.reader_group("verify", "v"),
        *probe_groups(2),
        "kbackup-groups",
    ]
    offsets = dict.fromkeys([*own, "billing", "kbackup-groups-page"], 3)
    segments = write(store, target(), range(10))
    archive, _ = committed(store, 1, segments=segments, topics=[state((0, 0, 10), number=1)], offsets=offsets)
    theirs = ["billing", "kbackup-groups-page"]
    head = archive.restore_point("latest")
    assert sorted(g.group for g in archive.groups(head).groups) == theirs
    captured, _ = captured_groups(archive, head.topics)
    assert sorted(captured) == theirs, "a restore sets no others"
    assert [g.group for g in groups_overview(archive, head).groups] == theirs
    (file,) = (data for key, data in derived_files(archive).items() if "consumer_offsets" in key)
    assert json.loads(file) == offsets, "files that a former version derived stay valid"


def test_lag_counts_archived_offsets_alone(store: FaultyStore) -> None:
    """Of a partition that was emptied before its backup, and of one whose oldest records were."""
    partitions = state((0, 500, 500), (1, 400, 500), number=1)
    archive = open_or_create(store)
    group = group_at("behind", (TOPIC, 0, 10), (TOPIC, 1, 10), (TOPIC, 1, 450))
    segments = write(store, target(partition=1), range(400, 500))
    commit_point(
        archive, 1, topics=[partitions], segments=segments, groups=[group], at=now(), cluster_id="", configs={TOPIC: {}}
    )
    (shown,) = groups_overview(archive, archive.restore_point(1)).groups
    assert [each.lag for each in shown.offsets] == [0, 100, 50]
    assert shown.lag == 150


def test_groups_and_settings_that_did_not_change_have_the_time_of_the_later_capture(store: FaultyStore) -> None:
    archive, first = committed(
        store, 1, segments=write(store, target(), range(10)), topics=[state((0, 0, 10), number=1)]
    )
    ((number, capture),) = [(each.number, each) for each in first.captures]
    assert archive.groups(number).captured_at >= capture.started_at
    later = msgspec.structs.replace(capture, number=2, started_at="2100-01-01T00:00:00.000Z")
    archive._captures[2] = later
    assert archive.groups(2).captured_at == later.started_at
    assert archive.metadata(2).captured_at == later.started_at


# Readers refuse documents and tables that were changed, swapped, lost or cut.


_CHANGES: list[tuple[dict[str, object], str]] = [
    ({"format": "other"}, "says format 'other'"),
    ({"version": 9}, "has version 9, known is "),
    ({"surprise": 1}, "surprise"),
]


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        *((kind, change, why) for kind in ("manifest", "catalog") for change, why in _CHANGES),
        ("manifest", {"number": 9}, "does not match its own checksum"),
        ("manifest", {"origin": "great"}, "great"),
        ("catalog", {"next_point": 9}, "does not match its own checksum"),
        ("catalog", {"pins": {}}, "pins"),
    ],
)
def test_a_document_that_was_changed_is_refused(
    kind: str, change: dict[str, object], why: str, store: FaultyStore
) -> None:
    archive, _ = committed(store, 1)
    key = archive.restore_points[0].documents[0] if kind == "manifest" else layout.catalog_key(archive.state.number)
    store.put(key, json.dumps(json.loads(store.get(key)) | change).encode())
    with pytest.raises(CorruptError, match=why) as raised:
        open_archive(store).restore_point(1)
    assert key in raised.value.message


@pytest.mark.parametrize("key", [layout.ARCHIVE, layout.LATEST, layout.catalog_key(2)])
@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
def test_documents_without_a_json_object_are_refused(data: bytes, key: str, store: FaultyStore) -> None:
    archive, _ = committed(store, 1)
    assert archive.state.number == 2
    store.put(key, data)
    with pytest.raises(CorruptError, match=f"file {key}"):
        open_archive(store)


def test_a_manifest_of_another_number_or_archive_is_refused(store: FaultyStore) -> None:
    committed(store, 1)
    archive, _ = committed(store, 2)
    one, two = (point.documents[0] for point in archive.restore_points)
    whole = store.get(two)
    store.put(two, store.get(one))
    with pytest.raises(CorruptError, match="is not the manifest that the catalog names"):
        open_archive(store).restore_point(2)
    store.put(two, whole)
    open_archive(store).restore_point(2)
    info = ArchiveInfo(id="0" * 32, created_at="2020-01-01T00:00:00.000Z")
    with pytest.raises(CorruptError, match="belongs to archive"):
        Archive(store, info, archive.committed).restore_point(2)


def test_a_catalog_of_another_number_or_archive_is_refused(store: FaultyStore) -> None:
    committed(store, 1)
    archive, _ = committed(store, 2)
    number = archive.state.number
    store.put(layout.catalog_key(number), store.get(layout.catalog_key(number - 1)))
    with pytest.raises(CorruptError, match=f"is of catalog {number - 1}"):
        open_archive(store)
    store.put(layout.ARCHIVE, dump(ArchiveInfo(id="0" * 32, created_at="2020-01-01T00:00:00.000Z")))
    with pytest.raises(CorruptError, match="belongs to archive"):
        open_archive(store)


def test_a_lost_catalog_is_never_taken_for_one_that_was_not_committed(store: FaultyStore) -> None:
    committed(store, 1)
    archive, _ = committed(store, 2)
    key = layout.catalog_key(archive.state.number)
    store.delete([key])
    with pytest.raises(CorruptError, match=rf"file {key} is missing, catalog/latest\.json names it"):
        open_archive(store)


@pytest.mark.parametrize("hint", [None, 1, 2, 3])
def test_an_old_hint_or_none_leads_to_the_newest_catalog(hint: int | None, store: FaultyStore) -> None:
    committed(store, 1)
    archive, _ = committed(store, 2)
    store.delete([layout.LATEST])
    if hint is not None:
        store.put(layout.LATEST, dump(Latest(archive_id=archive.info.id, number=hint)))
    assert open_archive(store).state.number == archive.state.number > 3


@pytest.mark.parametrize("name", ["table", layout.GROUPS, layout.METADATA])
def test_the_files_beside_a_manifest_are_those_it_names(name: str, store: FaultyStore) -> None:
    first = write(store, target(0), range(30))
    archive, _ = committed(store, 1, segments=first, topics=[state((0, 0, 30), number=1)])
    catalog = archive.committed.catalog
    assert catalog is not None
    reads: dict[str, Callable[[], object]] = {
        "table": lambda: open_archive(store).added(0, 1),
        layout.GROUPS: lambda: open_archive(store).groups(1),
        layout.METADATA: lambda: open_archive(store).metadata(1),
    }
    (key,) = (
        [ref.key for ref in catalog.tables.segments]
        if name == "table"
        else [key for key in archive.restore_points[0].documents if key.endswith(name)]
    )
    data = store.get(key)
    reads[name]()
    store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptError, match=r"is not what its (manifest|catalog) says"):
        reads[name]()
    store.delete([key])
    with pytest.raises(CorruptError, match="is missing"):
        reads[name]()


def with_segments_table(store: FaultyStore, data: bytes, rows: int) -> Archive:
    """An archive whose catalog refers to `data` as its table of segments."""
    archive, _ = committed(store, 1)
    key = layout.table_key(archive.state.number, "0" * 32, 99)
    store.put(key, data)
    catalog = archive.committed.catalog
    assert catalog is not None
    ref = TableRef(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest(), rows=rows)
    fields: dict[str, Any] = {name: getattr(catalog, name) for name in catalog.__struct_fields__}
    fields |= {"checksum": "", "tables": Tables(points=catalog.tables.points, segments=(ref,))}
    store.put(layout.catalog_key(catalog.number), dump(Catalog(**fields)))
    return open_archive(store)


def parquet(rows: int) -> bytes:
    """A table of segments that are all alike: they take few bytes."""
    columns = [
        pa.array([""] * rows) if pa.types.is_string(f.type) else pa.array(np.zeros(rows, np.int64)) for f in SEGMENTS
    ]
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, names=SEGMENTS.names).cast(SEGMENTS), sink, compression="zstd")
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (parquet(50_000), "has 50000 rows, its document says 7"),
        (parquet(0), "has 0 rows, its catalog says 7"),
        *((data, "is not a Parquet table") for data in (b"", b"PAR1", b"no table at all")),
    ],
    ids=["more rows", "fewer rows", "empty", "magic alone", "text"],
)
def test_a_table_that_is_not_as_its_catalog_says_is_refused(
    data: bytes, why: str, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are counted by the footer before they are read."""
    archive = with_segments_table(store, data, rows=7)
    if "50000" in why:
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("rows are read"))
    with pytest.raises(CorruptError, match=why):
        archive.added(0, 1)


def test_the_segments_that_a_restore_point_stands_on(store: FaultyStore) -> None:
    first = write(store, target(1), range(9)) + write(store, target(0), range(30))
    committed(store, 1, segments=first, topics=[state((0, 0, 30), (1, 0, 9), number=1)])
    second = write(store, target(0), range(30, 40)) + write(store, target(0, incarnation=2), range(5))
    point = [state((0, 0, 40), (1, 0, 9), number=2)]
    committed(store, 2, segments=second, topics=point)
    archive = open_archive(store)
    segments = archive.segments(archive.restore_point(2))
    ours = [s for s in [*first, *second] if s.incarnation == 1]
    assert segments == sorted(ours, key=lambda s: (s.partition, s.first))
    assert archive.segments(archive.restore_point(1)) == sorted(first, key=lambda s: (s.partition, s.first))
    renewed = [state((0, 0, 5), number=2, incarnation=2)]
    assert [s.incarnation for s in archive.segments(archive.restore_point(2), renewed)] == [2]
    assert archive.segments(archive.restore_point(2), []) == []
    assert {s.topic for s in segments} == {TOPIC}


_FIRST_READS = """
import sys, threading
from kbackup.archive.models import Manifest, load
data = open(sys.argv[1], "rb").read()
start = threading.Barrier(8)
def read():
    start.wait()
    load(Manifest, data, "it")
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.exhaustive
def test_first_reads_at_once(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"))
    archive = make_archive(store)
    manifest = tmp_path / "archive" / archive.restore_points[-1].documents[0]
    for _ in range(5):
        run = subprocess.run(
            [sys.executable, "-c", _FIRST_READS, str(manifest)], capture_output=True, text=True, check=False
        )
        assert (run.returncode, run.stderr) == (0, "")


def test_documents_of_restore_points_that_are_read_side_by_side_are_read_once() -> None:
    store = MemoryStore("memory://archive")
    archive = make_archive(store)
    numbers = list(range(archive.restore_points[-1].number + 1, 9))
    for number in numbers:
        commit_point(open_archive(store), number, groups=[group_at(f"group-{number}", ("orders", 0, number))])
    archive = open_archive(store)
    first = in_threads(archive.groups, numbers)
    before = store.requests["GET"]
    again = in_threads(archive.groups, numbers)
    assert again == first
    assert store.requests["GET"] == before, "a document was read again"


EVIL = (
    "..",
    ".",
    "",
    "../../../etc/cron.d/x",
    "/etc/passwd",
    "a/b",
    "a/../../b",
    "..\\..\\b",
    "a\n",
    "a\x00",
    "a\x1b[2J",
    "a" * 250,
    "orders@2",
    "\u202etoP",
    "caf\u00e9",
)
LEGAL = r"[A-Za-z0-9._-]{1,249}"


@pytest.fixture
def folder(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "deep" / "archive")


def manifest_of(folder: FileStore, name: str) -> bytes:
    _, manifest = committed(folder, 1, topics=[state((0, 0, 3), number=1)])
    (topic,) = manifest.topics
    return dump(msgspec.structs.replace(manifest, topics=(msgspec.structs.replace(topic, name=name),)))


@pytest.mark.parametrize("name", EVIL)
def test_a_manifest_that_names_what_is_no_topic_is_refused(name: str, folder: FileStore) -> None:
    data = manifest_of(folder, name)
    with pytest.raises(CorruptError, match=r"file points/1/manifest.json.*topics\[0\].name"):
        load(Manifest, data, "points/1/manifest.json")
    archive = open_archive(folder)
    folder.put(archive.restore_points[0].documents[0], data)
    with pytest.raises(CorruptError):
        archive.restore_point("latest")


@given(st.text(max_size=300) | st.from_regex(LEGAL, fullmatch=True))
def test_a_topic_is_one_folder(name: str) -> None:
    topic = state((0, 0, 3), number=1, name=name)
    try:
        taken = msgspec.convert(msgspec.to_builtins(topic), TopicState)
    except msgspec.ValidationError:
        return
    folder = layout.topic_dir(taken.name)
    assert is_key(folder.rstrip("/"))
    assert folder.count("/") == 2
    assert taken.name.isprintable()


@given(st.from_regex(LEGAL, fullmatch=True).filter(lambda name: name not in (".", "..")))
def test_every_topic_of_kafka_is_taken(name: str) -> None:
    topic = state((0, 0, 3), number=1, name=name)
    assert msgspec.convert(msgspec.to_builtins(topic), TopicState) == topic


@pytest.mark.parametrize(
    "key",
    [
        "../../outside",
        "/etc/passwd",
        "lock.json",
        "topics/orders/../../archive.json",
        "topics/other/segment_partition_000_from_offset_0000000000_records",
        "topics/orders/segment_partition_001_from_offset_0000000000_records",
        "topics/orders/segment_partition_000_from_offset_0000000000_records\n",
        "",
    ],
)
def test_a_segment_that_lies_elsewhere_is_refused(key: str, folder: FileStore, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"\1secret")
    segments = write(folder, target(threshold=1 << 20), range(3))
    moved = [replace(s, key=key) for s in segments]
    archive, manifest = committed(folder, 1, segments=moved, topics=[state((0, 0, 3), number=1)])
    with pytest.raises(CorruptError, match="is named by the catalog where topics/orders/segment"):
        content_of(archive, manifest, manifest.topics)


@pytest.mark.parametrize("key", [*EVIL[:7], "a//b", "a/", "/", "a/\0"])
def test_a_directory_gives_nothing_from_outside(key: str, folder: FileStore, tmp_path: Path) -> None:
    folder.put("a/b", b"")
    (tmp_path / "b").write_bytes(b"not ours")
    if is_key(key):
        key = f"../{key}"
    for ask in (
        lambda: folder.get(key),
        lambda: folder.put(key, b""),
        lambda: folder.put_new(key, b""),
        lambda: folder.get_range(key, 0, 1),
        lambda: folder.stat(key),
        lambda: folder.upload(key),
    ):
        with pytest.raises(KbackupError, match="can't be used"):
            ask()
    assert [failed.key for failed in folder.delete([key])] == [key]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "deep"]


@pytest.mark.parametrize("link", ["archive.json", "topics"])
def test_names_with_a_line_feed_are_no_names(link: str) -> None:
    assert layout.parse_segment("segment_partition_000_from_offset_0000000000_records\n") is None
    assert layout.parse_partition_index("index_partition_000\n") is None
    assert layout.parse_catalog_key("catalog/0000000001.json\n") is None
    assert layout.parse_table_key("tables/0000000001-a-0.parquet\n") is None
    assert layout.parse_topic_key(f"topics/orders\n/{link}") is None
    assert layout.parse_point_key(f"points/0000000001-a\n/{link}") is None
    assert layout.parse_point_key(f"points/0000000001-a/{link}\n") != (1, "a", link)


@pytest.mark.parametrize("restore_id", ["..", ".", "", "a/b", "../x", "a\n", "-x", "a" * 101, "\u00e9", "a\0"])
def test_restore_ids_are_one_plain_name(restore_id: str) -> None:
    with pytest.raises(UsageError, match="can't be used"):
        layout.restore_key(restore_id, layout.PLAN)


def test_a_folder_of_the_java_tool_may_have_any_folder_names(tmp_path: Path) -> None:
    """They are read from where they are; what can't be a topic, the target's broker refuses."""
    names = ["a\x1b[2J", "new\nline", "caf\u00e9", "..hidden", "orders@2"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "index_partition_000").write_bytes(b"\1")
    store = FileStore(tmp_path)
    assert sorted(java_topics(store)) == sorted(names)
    content = java_content(store, java_topics(store))
    assert sorted(topic.name for topic in content.topics) == sorted(names)
