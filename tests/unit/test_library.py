"""What programs get by `import kbackup`."""

from __future__ import annotations

import inspect
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, is_typeddict

import pyarrow as pa
import pytest

import kbackup
from kbackup.config import Config
from kbackup.errors import NoArchiveError, UsageError
from kbackup.library import configured
from kbackup.store import open_store
from kbackup.types import TopicPartition
from tests.support.archives import grow, make_archive

AT = "2026-01-01T12:00:00Z"
"""Between the two restore points."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("library") / "archive")
    make_archive(open_store(root))
    return root


@pytest.fixture
def archive(url: str) -> kbackup.ArchiveReader:
    return kbackup.open_archive(url, config={})


def test_functions_of_the_library_keep_their_parameters() -> None:
    signatures: dict[str, list[str]] = {}
    for name in kbackup.__all__:
        found = getattr(kbackup, name)
        if is_typeddict(found):
            signatures[name] = []  # its keys are those of a section: see below
        elif callable(found):
            signatures[name] = [*inspect.signature(found).parameters]
    assert signatures == {
        "ArchiveReader": ["store", "restore_point", "at", "opened"],
        "BackupSettings": [],
        "Record": [
            *("topic", "partition", "offset", "timestamp", "headers", "key", "value", "key_bytes", "value_bytes"),
            *("key_schema", "value_schema", "key_error", "value_error"),
        ],
        "RestorePoint": ["number", "committed_at", "labels", "pinned", "records", "bytes", "losses", "_archive"],
        "RestoreSettings": [],
        "backup": ["config", "label", "spark", "listener", "settings"],
        "open_archive": ["url", "config", "restore_point", "to_time"],
        "restore": ["config", "dry_run", "count", "spark", "listener", "settings"],
        "status": ["config", "settings"],
        "to_dict": ["report"],
        "verify": ["config", "restore_point", "quick", "spark", "listener"],
    }
    public = {name for name in dir(kbackup.ArchiveReader) if not name.startswith("_")}
    assert public == {
        "at",
        "catalogue",
        "frame",
        "group_names",
        "groups",
        "id",
        "overview",
        "records",
        "restore_points",
        "schemas",
        "serve",
        "topics",
        "url",
    }


def test_importing_it_loads_nothing_else() -> None:
    program = "import sys, kbackup; print(*sorted(m for m in sys.modules if m.partition('.')[0] in sys.argv))"
    libraries = ["boto3", "confluent_kafka", "kbackup", "numpy", "pyarrow", "pyspark"]
    done = subprocess.run([sys.executable, "-c", program, *libraries], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kbackup", "kbackup.errors"]


def test_what_an_archive_holds(archive: kbackup.ArchiveReader) -> None:
    first, second = archive.restore_points
    assert (archive.topics, first.topics, second.topics) == (("orders",), ("clicks", "orders"), ("orders",))
    assert (first.number, first.committed_at, second.losses) == (1, datetime(2026, 1, 1, tzinfo=UTC), 1)
    assert archive.group_names == ("billing", "late")
    assert archive.groups("late") == {TopicPartition("orders", 0): 41}
    assert [(t.name, t.sums.records) for t in archive.overview().topics] == [("clicks", 20), ("orders", 46)]


@pytest.mark.parametrize(
    ("selection", "offsets"),
    [
        ({"partition": 0, "to_offset": 3}, [0, 1, 2]),
        ({"partition": 0, "from_offset": 38}, [38, 39]),
        ({"partition": 0, "from_offset": 8, "to_offset": 18}, [8, 9, 15, 17]),
        ({"partition": 2}, []),
        ({"to_offset": 1}, [0, 0]),
    ],
)
def test_records_are_selected_by_partition_and_offset(
    archive: kbackup.ArchiveReader, selection: dict[str, Any], offsets: list[int]
) -> None:
    batches = archive.records("orders", columns=["offset"], **selection)
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == offsets


def test_records_of_a_deleted_topic_and_of_a_restore_point_before(archive: kbackup.ArchiveReader) -> None:
    assert sum(batch.num_rows for batch in archive.records("clicks")) == 20
    before = archive.at(restore_point=1)
    assert before.topics == ("clicks", "orders")
    assert sum(batch.num_rows for batch in before.records("orders", 0)) == 10
    assert before.groups("billing")[TopicPartition("orders", 0)] == 4


def test_times_select_records_of_a_partition(archive: kbackup.ArchiveReader) -> None:
    table = pa.Table.from_batches(archive.records("orders", 0))
    stamps = table.column("timestamp").to_pylist()
    some = archive.records("orders", 0, from_time=stamps[3], to_time=stamps[5])
    assert [stamp for batch in some for stamp in batch.column("timestamp").to_pylist()] == stamps[3:6]
    upto = archive.at(to_time=stamps[5]).records("orders", 0)
    assert sum(batch.num_rows for batch in upto) == 6


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda a: a.groups("billling"), "there is no group billling"),
        (lambda a: list(a.records("ordres")), "there is no topic ordres"),
        (lambda a: list(a.records("orders", 7)), "topic orders has no partition 7"),
        (lambda a: list(a.records("orders", columns=["body"])), "records have no column body"),
        (lambda a: list(a.records("orders", from_time="yesterday")), "from_time yesterday is not a time"),
        (lambda a: a.at(to_time=datetime(2026, 1, 1)), "to_time 2026-01-01 00:00:00 has no zone"),
        (lambda a: a.at(restore_point=9), "there is no restore point 9"),
        (lambda a: kbackup.open_archive(config={}), "no archive is named"),
        (lambda a: kbackup.backup({}, topiks=["a"]), "argument: unknown key backup.topiks"),  # type: ignore[call-arg]
        (lambda a: kbackup.backup(Config(), topics=["a"]), "topics: a finished configuration takes no settings"),
    ],
)
def test_wrong_arguments(archive: kbackup.ArchiveReader, call: Any, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        call(archive)
    assert words in raised.value.message


def test_an_opened_archive_does_not_change(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    opened = kbackup.open_archive(store.url, config={})
    grow(store, 3, 12, 20)
    both = opened, kbackup.open_archive(store.url, config={})
    counts = [sum(batch.num_rows for batch in each.records("orders", 1)) for each in both]
    assert (counts, [len(each.restore_points) for each in both]) == ([12, 20], [2, 3])
    assert [each.overview().restore_points for each in both] == [2, 3]
    assert [len(each.at(to_time="2100-01-01T00:00:00Z").restore_points) for each in both] == [2, 3]
    with pytest.raises(UsageError, match="no restore point 3"):
        opened.at(restore_point=3)


def test_opening_a_place_without_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoArchiveError):
        kbackup.open_archive(str(tmp_path), config={})


def test_settings_of_a_call_become_keys_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kbackup.toml"
    file.write_text('archive = "/a"\n[restore]\ntopics = ["clicks"]\nstrict = true\n')
    settings = {"topics": ("orders",), "map": {"orders": "o2"}, "to_time": datetime(2026, 1, 1, tzinfo=UTC)}
    made = configured(file, "restore", settings)
    assert (made.archive, made.restore.topics, made.restore.strict) == ("/a", ("orders",), True)
    assert (made.restore.map, made.restore.to_time) == ({"orders": "o2"}, "1767225600000")
    monkeypatch.chdir(tmp_path)
    assert configured(None).archive == "/a"
    assert configured({"source": {"bootstrap.servers": "b:1"}}).archive is None, "a mapping is in place of the file"


def test_a_report_is_the_document_of_the_command(url: str) -> None:
    document = kbackup.to_dict(kbackup.status({"archive": url}))
    assert document["level"] == "critical"
    assert {"archive", "findings", "newest"} <= document.keys()
