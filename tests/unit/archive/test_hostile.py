"""An archive from somewhere else may say anything: nothing that it names leads out of its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.models import Manifest, TopicState, dump, load
from kbackup.archive.query.content import content_of
from kbackup.archive.query.java import java_content, java_topics
from kbackup.archive.reader import open_archive
from kbackup.errors import CorruptError, KbackupError, UsageError
from kbackup.store.base import is_key
from kbackup.store.file import FileStore
from tests.support.made_segments import committed, state, target, write

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
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "deep" / "archive")


def manifest_of(store: FileStore, name: str) -> bytes:
    _, manifest = committed(store, 1, None, topics=[state((0, 0, 3), number=1)])
    (topic,) = manifest.topics
    return dump(msgspec.structs.replace(manifest, topics=(msgspec.structs.replace(topic, name=name),)))


@pytest.mark.parametrize("name", EVIL)
def test_a_manifest_that_names_what_is_no_topic_is_refused(name: str, store: FileStore) -> None:
    data = manifest_of(store, name)
    with pytest.raises(CorruptError, match=r"file points/1/manifest.json.*topics\[0\].name"):
        load(Manifest, data, "points/1/manifest.json")
    archive = open_archive(store)
    store.put(archive.restore_points[0].documents[0], data)
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
def test_a_segment_that_lies_elsewhere_is_refused(key: str, store: FileStore, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"\1secret")
    segments = write(store, target(threshold=1 << 20), range(3))
    moved = [replace(s, key=key) for s in segments]
    archive, manifest = committed(store, 1, None, segments=moved, topics=[state((0, 0, 3), number=1)])
    with pytest.raises(CorruptError, match="is named by the catalog where topics/orders/segment"):
        content_of(archive, manifest, manifest.topics)


@pytest.mark.parametrize("key", [*EVIL[:7], "a//b", "a/", "/", "a/\0"])
def test_a_directory_gives_nothing_from_outside(key: str, store: FileStore, tmp_path: Path) -> None:
    store.put("a/b", b"")
    (tmp_path / "b").write_bytes(b"not ours")
    if is_key(key):
        key = f"../{key}"
    for ask in (
        lambda: store.get(key),
        lambda: store.put(key, b""),
        lambda: store.put_new(key, b""),
        lambda: store.get_range(key, 0, 1),
        lambda: store.stat(key),
        lambda: store.upload(key),
    ):
        with pytest.raises(KbackupError, match="can't be used"):
            ask()
    assert [failed.key for failed in store.delete([key])] == [key]
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
