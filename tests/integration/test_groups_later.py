"""Groups set on their own: from other moments, on targets that have moved on, and on the source cluster itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kbackup.archive.reader import open_archive
from kbackup.kafka.admin.cluster import Cluster
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from tests.golden.java_archive import PARTITIONS, ROOT
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.integration.test_groups import put
from tests.support.group_requests import Stand, raw_positions
from tests.support.restored import expected_offset
from tests.support.truth import log_ends, read_topic


@dataclass(frozen=True)
class Kept:
    """A topic of two partitions in two restore points: records 0 to 29, then up to 39; its group moved between."""

    broker: Broker
    kbackup: Kbackup
    archive: Archive
    topic: str
    first: Stand
    second: Stand

    @property
    def group(self) -> str:
        return f"{self.topic}-group"

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.broker.client(), "target")

    def groups(self, command: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        outcome = self.kbackup("groups", command, *arguments, "--archive", self.archive.url)
        assert outcome.code == code, f"{outcome.err}\n{outcome.document}"
        return outcome.document

    def stand(self) -> Stand:
        return raw_positions(self.broker.bootstrap, self.group)

    def restore(self, name: str) -> tuple[str, list[str]]:
        """Restore point 1 without groups; the new topic and what names the restore."""
        copy, restore_id = f"{self.topic}.{name}", f"{self.topic}-{name}"
        self.kbackup.restore(
            self.archive,
            *("--restore-point", "1", "--map", f"{self.topic}={copy}", "--no-groups", "--restore-id", restore_id),
        )
        return copy, ["--restore-id", restore_id]


@pytest.fixture
def kept(broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str) -> Kept:
    broker.create_topic(topic_name, 2)
    first: Stand = {(topic_name, 0): (10, 0, "first"), (topic_name, 1): (30, None, "")}
    second: Stand = {(topic_name, 0): (25, 0, "second"), (topic_name, 1): (33, None, "")}
    kept = Kept(broker, kbackup, archive, topic_name, first, second)
    for count, position in ((30, first), (10, second)):
        for partition in range(2):
            topics.produce(broker, topic_name, partition, topics.numbered(count))
        put(kept.cluster, kept.group, position)
        kbackup.backup(archive, "-t", topic_name, "-g", kept.group)
    return kept


def test_source_cluster_gets_its_own_offsets_again(kept: Kept) -> None:
    same = ("--same-offsets", "-g", kept.group)
    applied = kept.groups("apply", *same, "--restore-point", "1")
    assert (applied["restore_point"], kept.stand()) == (1, kept.first)
    kept.groups("undo", "--restore-id", applied["restore_id"])
    assert kept.stand() == kept.second
    archive = open_archive(kept.archive.store)
    taken = [archive.groups(archive.restore_point(n)).captured_at for n in (1, 2)]
    assert kept.groups("plan", *same, "--to-time", taken[0])["captured_at"] == taken[0]
    assert kept.groups("plan", *same, "--to-time", "now")["captured_at"] == taken[1]
    early = kept.groups("plan", *same, "--to-time", "2020-01-01T00:00:00Z", code=2)
    assert "no restore point was captured at or before 2020-01-01" in early["error"]["message"]
    topics.delete_records(kept.broker, kept.topic, {0: 15})
    assert [g["status"] for g in kept.groups("apply", *same, "--to-time", taken[0])["groups"]] == ["applied"]
    assert kept.stand()[kept.topic, 0] == (15, 0, "first")


def test_offsets_of_another_cluster_or_another_log_are_not_the_same(kept: Kept) -> None:
    same = ("--same-offsets", "-g", kept.group)
    with mock.patch.object(Cluster, "connect", return_value=("elsewhere", 1)):
        refused = kept.groups("apply", *same, code=1)
    assert "this is elsewhere: offsets are not the same there" in refused["error"]["message"]
    topics.delete_topic(kept.broker, kept.topic)
    kept.broker.create_topic(kept.topic, 1)
    report = kept.groups("apply", *same, code=3)
    assert sorted(report["groups"][0]["left_out"]) == [
        f"{kept.topic}-0 is another log: the topic was made anew since",
        f"{kept.topic}-1 is not on the target",
    ]
    assert (report["capture"], kept.stand()) == (0, {})


def test_target_that_moved_on_is_read_from_where_it_did(kept: Kept) -> None:
    copy, restore = kept.restore("moved")
    for partition in range(2):
        topics.produce(kept.broker, copy, partition, topics.numbered(5, "written since"))
    report = kept.groups("apply", *restore, "-g", kept.group)
    assert {o["how"] for o in report["groups"][0]["offsets"]} == {"exact", "log end"}
    held, stood = read_topic(kept.broker.bootstrap, copy), kept.stand()

    def following(partition: int) -> list[bytes | None]:
        return [r.value for r in held[partition] if r.offset >= stood[copy, partition][0]]

    since = topics.numbered(5, "written since")
    assert following(0) == topics.numbered(30)[10:] + since
    assert following(1) == since


def test_groups_of_another_moment_by_the_same_records(kept: Kept) -> None:
    copy, restore = kept.restore("other")
    topics.delete_records(kept.broker, copy, {0: 27})
    plan = kept.groups("plan", *restore, "--restore-point", "2")
    assert plan["restore_point"] == 2
    assert [(o["source"], o["target"], o["how"]) for o in plan["groups"][0]["offsets"]] == [
        (25, 27, "expired"),
        (33, log_ends(kept.broker.bootstrap, copy)[1], "log end"),
    ]


def test_topics_deleted_from_the_target_are_skipped_and_named(kept: Kept) -> None:
    copy, restore = kept.restore("gone")
    kept.broker.create_topic("unrelated-" + kept.topic)
    topics.delete_topic(kept.broker, copy)
    report = kept.groups("apply", *restore, code=3)
    assert [(g["status"], g["why"]) for g in report["groups"]] == [("left alone", "it gets no offset")]
    assert report["groups"][0]["left_out"] == [f"{copy}-{p} is not on the target" for p in range(2)]
    kept.broker.create_topic(copy, 2)
    again = kept.groups("apply", *restore, code=3)
    assert again["groups"][0]["left_out"] == [
        f"{copy}-{p} ends at 0, and was restored up to 30: it was made anew since" for p in range(2)
    ]
    assert kept.stand() == kept.second


def test_topic_made_anew_between_restore_points_is_another_log(kept: Kept) -> None:
    _, restore = kept.restore("anew")
    topics.delete_topic(kept.broker, kept.topic)
    kept.broker.create_topic(kept.topic, 2)
    topics.produce(kept.broker, kept.topic, 0, topics.numbered(9))
    put(kept.cluster, kept.group, {(kept.topic, 0): (4, None, "")})
    kept.kbackup.backup(kept.archive, "-t", kept.topic, "-g", kept.group, code=3)
    plan = kept.groups("plan", *restore, "--restore-point", "3", code=3)
    assert [g["offsets"] for g in plan["groups"]] == [[]]
    assert "is another log" in plan["groups"][0]["left_out"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "no restore is named"),
        (["plan", "--restore-id", "nobody"], "there is no restore nobody"),
        (["undo", "--restore-id", "nobody"], "nothing was written to groups by restore nobody"),
        (["apply", "--same-offsets", "-g", "nobody"], "there is no group nobody to be set"),
        (["show", "nobody"], "there is no group nobody in restore point 2"),
        (["show", "--to-time", "yesterday"], "--to-time yesterday is not a time"),
        (["show", "--to-time", "now", "--restore-point", "1"], "--restore-point and --to-time exclude each other"),
    ],
)
def test_unusable_arguments_are_refused(kept_once: Kept, arguments: list[str], message: str) -> None:
    assert message in kept_once.groups(*arguments, code=2)["error"]["message"]


@pytest.fixture(scope="module")
def kept_once(broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive]) -> Kept:
    archive, topic = new_archive(), "kept-once"
    broker.create_topic(topic, 1)
    kept = Kept(broker, kbackup, archive, topic, {}, {})
    put(kept.cluster, kept.group, {(topic, 0): (0, None, "")})
    for _ in range(2):
        kbackup.backup(archive, "-t", topic, "-g", kept.group)
    return kept


def test_folder_of_the_java_tool(
    broker: Broker, kbackup: Kbackup, archive: Archive, tmp_path: Path, topic_name: str
) -> None:
    folder = tmp_path / "java"
    shutil.copytree(ROOT / "archive", folder)
    java = Archive(f"file://{folder}", FileStore(folder))
    (own, *_) = [p for p in PARTITIONS if p.topic == "audit_log" and p.number == 1]
    state = ("--state", archive.url, "--restore-id", topic_name)
    kbackup.restore(java, "-t", "audit_log", "--map", f"audit_log={topic_name}", "--no-groups", *state)
    shown = kbackup("groups", "show", "cg-end ü", "--archive", java.url).document["group"]["offsets"]
    committed = json.loads(own.group_bytes())["cg-end ü"]
    assert (own.topic, own.number, committed) in [(o["topic"], o["partition"], o["offset"]) for o in shown]
    renamed = f"{topic_name}-group"
    options = ("-g", "cg-end ü", "--map-group", f"cg-end ü={renamed}", "--archive", java.url, *state)
    assert kbackup("groups", "apply", *options).code == 0
    target = read_topic(broker.bootstrap, topic_name)[1]
    end = log_ends(broker.bootstrap, topic_name)[1]
    wanted = expected_offset(committed, own.truth(), target, end)
    assert raw_positions(broker.bootstrap, renamed)[topic_name, 1] == (wanted, None, "")
    assert not [key for key in java.objects() if key.startswith("restores/")]
    Cluster(broker.client(), "target").groups.delete([renamed])
