"""`cat --decode mm2`: MirrorMaker 2's internal topics."""

from __future__ import annotations

import json

import pytest

from kbackup import cli
from kbackup.archive.models import TopicState
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.kafka.mirror_records import Checkpoint, Heartbeat, OffsetSync
from kbackup.store import open_store
from kbackup.types import TopicPartition
from tests.support.archives import commit_point, topic_state
from tests.support.plain_records import Plain, block_of

Said = pytest.CaptureFixture[str]

HEARTBEAT = Heartbeat("A", "B", 1700000000123)
CHECKPOINT = Checkpoint("grp-é", TopicPartition("A.topic1", 3), 1234, 1201, "md")
SYNC = OffsetSync(TopicPartition("topic1", 3), 1200, 1163)
TOPICS = {
    "heartbeats": [Plain(HEARTBEAT.key, HEARTBEAT.value)],
    "A.checkpoints.internal": [
        Plain(CHECKPOINT.key, CHECKPOINT.value),
        Plain(CHECKPOINT.key, None),
        Plain(CHECKPOINT.key, b"\0\1" + CHECKPOINT.value[2:]),
    ],
    "mm2-offset-syncs_B_internal": [Plain(SYNC.key, SYNC.value)],
    "orders": [Plain(b"key", b"value")],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("made") / "archive"
    store = open_store(str(folder))
    archive = open_or_create(store)
    topics: list[TopicState] = []
    every: list[Segment] = []
    for name, records in sorted(TOPICS.items()):
        with PartitionWriter(store, SegmentTarget(name, 1, 0, 1 << 20, "none")) as writer:
            segments = [*writer.append(block_of(records)), *writer.finish()]
        topics.append(topic_state(name, 1, "present", [(0, len(records), segments)]))
        every += segments
    commit_point(archive, 1, topics, every, [])
    return str(folder)


def cat(root: str, capsys: Said, *args: str, code: int = 0) -> tuple[list[str], str]:
    assert cli.main(["cat", *args, "--decode", "mm2", "-a", root]) == code
    out, err = capsys.readouterr()
    return out.splitlines(), err


@pytest.mark.parametrize(
    ("topic", "record", "key", "value"),
    [
        (
            "heartbeats",
            "heartbeat",
            {"sourceClusterAlias": "A", "targetClusterAlias": "B"},
            {"version": 0, "timestamp": 1700000000123},
        ),
        (
            "A.checkpoints.internal:0:0",
            "checkpoint",
            {"group": "grp-é", "topic": "A.topic1", "partition": 3},
            {"version": 0, "upstreamOffset": 1234, "offset": 1201, "metadata": "md"},
        ),
        (
            "mm2-offset-syncs_B_internal",
            "offset sync",
            {"topic": "topic1", "partition": 3},
            {"upstreamOffset": 1200, "offset": 1163},
        ),
    ],
)
def test_records_are_decoded_by_their_topics(
    root: str, capsys: Said, topic: str, record: str, key: object, value: object
) -> None:
    (line,), _ = cat(root, capsys, topic, "--json")
    told = json.loads(line)
    assert (told["key"], told["value"]) == (key, value)
    assert told["key_schema"] == told["value_schema"] == {"type": "MM2", "record": record}


def test_undecodable_values_are_shown_with_their_error(root: str, capsys: Said) -> None:
    lines, err = cat(root, capsys, "A.checkpoints.internal", "--json")
    assert [json.loads(line)["value"] is None for line in lines] == [False, True, False]
    assert json.loads(lines[2])["value_error"] == "value of a checkpoint: unknown version 1"
    assert "1 of 2 values could not be decoded" in err
    assert "unknown version 1" in cat(root, capsys, "A.checkpoints.internal", "--strict", code=1)[1]


def test_other_topics_stay_as_they_are(root: str, capsys: Said) -> None:
    (line,), err = cat(root, capsys, "orders", "--strict")
    assert line.split("\t")[2:] == ["key", "value"]
    assert "decoded" not in err
