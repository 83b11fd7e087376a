"""Restore to a real cluster: every record and every group's position, from several restore points and forms."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from pyspark.sql import SparkSession

from kbackup.archive import layout
from kbackup.archive.models import dump, load
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config.models import Restore as RestoreOptions
from kbackup.errors import RefusedError
from kbackup.jobs.restore.job import NoScreen, RestoreResources, restore
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.integration.zoo import FIRST, POSITIONS, SECOND, Zoo
from tests.support.archives import KEPT
from tests.support.truth import (
    Records,
    archive_records,
    assert_restored,
    expected_offset,
    group_names,
    log_ends,
    positions,
    read_topic,
)

# What would change restored records under the tests' eyes: the broker's own times, and its cleaner
# (which finds every key a second time once the restore's markers have closed the last log segment).
AS_THEY_ARE = ["--topic-config=message.timestamp.type=CreateTime", "--topic-config=min.cleanable.dirty.ratio=1.0"]


@dataclass(frozen=True)
class Restored:
    """A finished restore of the zoo, its topics under `prefix`."""

    zoo: Zoo
    moment: int
    prefix: str
    report: dict[str, Any]

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{self.zoo.topic(name)}"

    def read(self, name: str) -> Records:
        return read_topic(self.zoo.broker.bootstrap, self.topic(name))


def _restore(zoo: Zoo, kbackup: Kbackup, moment: int, prefix: str, *more: str) -> Restored:
    point = ["--map-regex", rf"^(.*)$={prefix}.\1", *AS_THEY_ARE, "--restore-id", f"{zoo.prefix}-{prefix}"]
    return Restored(zoo, moment, prefix, kbackup.restore(zoo.archive, *point, *more))


@pytest.fixture(scope="module")
def latest(zoo: Zoo, kbackup: Kbackup) -> Restored:
    return _restore(zoo, kbackup, 3, "latest")


@pytest.fixture(scope="module")
def oldest(zoo: Zoo, kbackup: Kbackup, latest: Restored) -> Restored:
    return _restore(zoo, kbackup, 1, "oldest", "--restore-point", "1")


@pytest.mark.parametrize(
    ("fixture", "name"), [*(("latest", name) for name in SECOND), *(("oldest", name) for name in FIRST)]
)
def test_a_restored_topic_has_the_records_of_its_restore_point(
    fixture: str, name: str, request: pytest.FixtureRequest
) -> None:
    restored: Restored = request.getfixturevalue(fixture)
    assert_restored(restored.zoo.held(name, restored.moment), restored.read(name))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("fixture", ["latest", "oldest"])
def test_groups_stand_on_the_same_records(fixture: str, position: str, request: pytest.FixtureRequest) -> None:
    restored: Restored = request.getfixturevalue(fixture)
    zoo = restored.zoo
    stood = zoo.moments[restored.moment - 1].groups[position]
    stand = positions(zoo.broker.bootstrap, zoo.group(position))
    compared = 0
    for name in FIRST if restored.moment == 1 else SECOND:
        source, target = zoo.held(name, restored.moment), restored.read(name)
        ends = log_ends(zoo.broker.bootstrap, restored.topic(name))
        for partition, records in source.items():
            committed, metadata = stood[zoo.topic(name), partition]
            expected = expected_offset(committed, records, target[partition], ends[partition])
            assert stand[restored.topic(name), partition] == (expected, metadata), f"{name}-{partition}"
            compared += 1
    assert compared > 15


def test_how_groups_were_mapped_is_reported(latest: Restored) -> None:
    groups = {g["source"]: g for g in latest.report["groups"]}
    assert {g["status"] for g in groups.values()} == {"applied"}

    def how(position: str, name: str, partition: int = 0) -> str:
        offsets = groups[latest.zoo.group(position)]["offsets"]
        expected = (latest.topic(name), partition)
        return next(str(o["how"]) for o in offsets if (o["topic"], o["partition"]) == expected)

    assert how("start", "trimmed") == "log start"
    assert how("middle", "long") == "exact"
    assert (how("gap", "compacted"), how("gap", "ledger")) == ("next record", "next record")
    assert (how("end", "long"), how("beyond", "odd", 2)) == ("log end", "log end")
    assert (how("end", "ledger"), how("end", "odd", 1)) == ("log end", "empty")


def test_report_says_what_was_done_and_nothing_else_is_left(latest: Restored) -> None:
    counted = {t["source"]: t["records"] for t in latest.report["topics"]}
    held = {latest.zoo.topic(n): sum(map(len, latest.zoo.held(n, 3).values())) for n in SECOND}
    assert counted == held
    assert latest.report["records"] == sum(held.values())
    assert (latest.report["status"], latest.report["missing"]) == ("restored", [])
    assert [w for w in latest.report["warnings"] if w.startswith("2 record(s) with timestamp 0")]
    # topics are made as archived but for what was asked
    assert _configs(latest.zoo.broker, latest.topic("stamped"))["message.timestamp.type"] == "CreateTime"
    assert _configs(latest.zoo.broker, latest.topic("compacted"))["cleanup.policy"] == "compact"
    assert _configs(latest.zoo.broker, latest.topic("big"))["max.message.bytes"] == str(6 << 20)
    # and transactions leave no progress group
    progress = layout.progress_group(latest.report["restore_id"])
    assert progress not in group_names(AdminClient(latest.zoo.broker.client()))


def test_older_restore_point_has_the_topics_and_configs_of_then(latest: Restored, oldest: Restored) -> None:
    """One of them is gone since, one was made anew, one has got partitions and another config, one came later."""
    zoo = oldest.zoo
    assert {t["source"]: (t["target"], t["partitions"]) for t in oldest.report["topics"]} == {
        zoo.topic(name): (oldest.topic(name), len(zoo.held(name, 1))) for name in FIRST
    }
    assert zoo.topic("late") not in {t["source"] for t in oldest.report["topics"]}
    assert len(zoo.held("growing", 1)) < len(zoo.held("growing", 3))
    name = "max.message.bytes"
    assert _configs(zoo.broker, latest.topic("growing"))[name] == "2000000"
    assert _configs(zoo.broker, oldest.topic("growing"))[name] != "2000000"


def _configs(broker: Broker, topic: str) -> dict[str, str]:
    admin, resource = AdminClient(broker.client()), ConfigResource(ConfigResource.Type.TOPIC, topic)
    (future,) = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in future.result(30).items()}


def test_same_id_again_says_so_and_changes_nothing(latest: Restored, kbackup: Kbackup) -> None:
    zoo, objects = latest.zoo, latest.zoo.archive.objects()
    ends = {name: log_ends(zoo.broker.bootstrap, latest.topic(name)) for name in SECOND}
    before = {position: positions(zoo.broker.bootstrap, zoo.group(position)) for position in POSITIONS}
    again = _restore(zoo, kbackup, 3, "latest")
    assert [w for w in again.report["warnings"] if "was finished before" in w]
    assert again.report["topics"] == latest.report["topics"]
    assert {name: log_ends(zoo.broker.bootstrap, latest.topic(name)) for name in SECOND} == ends
    assert {position: positions(zoo.broker.bootstrap, zoo.group(position)) for position in POSITIONS} == before
    assert zoo.archive.objects() == objects


def test_finished_restore_is_not_taken_for_another_one(zoo: Zoo, kbackup: Kbackup, topic_name: str) -> None:
    """Neither with other options, nor where the records or the topic that it made are gone."""
    source = zoo.topic("long")
    line = ["-t", source, "--map", f"{source}={topic_name}", "--no-groups", "--restore-id", topic_name]
    kbackup.restore(zoo.archive, *line)
    assert "was finished before" in kbackup.restore(zoo.archive, *line)["warnings"][-1]

    def refused(*arguments: str) -> str:
        return str(kbackup.restore(zoo.archive, *arguments, code=10)["error"]["message"])

    assert 'with other options: restore_point was "latest", now 1' in refused(*line, "--restore-point", "1")
    assert "with other options: no_groups was true, now unset" in refused(*(o for o in line if o != "--no-groups"))
    assert "with other options" in refused("--restore-id", topic_name, "--dry-run")
    topics.delete_records(zoo.broker, topic_name, {0: 10})
    gone = refused(*line)
    assert "put records at offsets 0 to " in gone
    assert f"(exclusive) of {topic_name}-0, which has 10 to " in gone
    topics.delete_topic(zoo.broker, topic_name)
    assert f"topic {topic_name} of finished restore {topic_name} is not in the target" in refused(*line)
    zoo.broker.create_topic(topic_name, 1)
    assert f"of {topic_name}-0, which has 0 to 0 now" in refused(*line)


def test_finished_restore_into_another_cluster_is_not_done_here(oldest: Restored, kbackup: Kbackup) -> None:
    store, restore_id = oldest.zoo.archive.store, "elsewhere"
    for name in (layout.PLAN, layout.REPORT):
        data = store.get(layout.restore_key(oldest.report["restore_id"], name))
        if name == layout.PLAN:
            plan = load(RestorePlan, data, name)
            data = dump(msgspec.structs.replace(plan, restore_id=restore_id, target_cluster_id="other"))
        store.put(layout.restore_key(restore_id, name), data)
    refused = kbackup.restore(oldest.zoo.archive, "--restore-id", restore_id, code=1)
    assert "was begun into cluster other" in refused["error"]["message"]


def test_deleted_topic_comes_back_where_it_is_named(latest: Restored, kbackup: Kbackup, topic_name: str) -> None:
    zoo = latest.zoo
    assert zoo.topic("gone") not in {t["source"] for t in latest.report["topics"]}
    kbackup.restore(zoo.archive, "-t", zoo.topic("gone"), "--map", f"{zoo.topic('gone')}={topic_name}")
    target = read_topic(zoo.broker.bootstrap, topic_name)
    assert_restored(zoo.held("gone", 1), target)
    committed = zoo.moments[0].groups["middle"][zoo.topic("gone"), 0]
    stand = positions(zoo.broker.bootstrap, zoo.group("middle"))[topic_name, 0]
    assert stand.offset == expected_offset(committed.offset, zoo.held("gone", 1)[0], target[0], -1)


def test_without_transactions_target_offsets_have_no_gaps(zoo: Zoo, kbackup: Kbackup) -> None:
    names = ["odd", "ledger", "compacted"]
    selected = [f"--topic={zoo.topic(name)}" for name in names]
    selected += ["--map-regex", "^=gapless.", "--no-transactions", "--no-groups"]
    kbackup.restore(zoo.archive, *selected, *AS_THEY_ARE)
    for name in names:
        target = read_topic(zoo.broker.bootstrap, f"gapless.{zoo.topic(name)}")
        assert_restored(zoo.held(name, 3), target)
        for partition, records in target.items():
            assert [r.offset for r in records] == list(range(len(records)))
            assert log_ends(zoo.broker.bootstrap, f"gapless.{zoo.topic(name)}")[partition] == len(records)


def test_an_archive_in_the_form_of_the_java_tool_is_the_same_and_restores(
    zoo: Zoo, kbackup: Kbackup, archive: Archive
) -> None:
    names = ["odd", "long", "big"]
    selected = [f"--topic={zoo.topic(name)}" for name in names]
    kbackup.backup(archive, *selected, "--compression", "none")
    stored = [key for key in archive.objects() if "_records" in key]
    assert stored
    assert all(key.endswith("_records") for key in stored)
    kbackup.restore(archive, "--map-regex", "^=plain.", "--no-groups")
    for name in names:
        assert archive_records(archive.store, zoo.topic(name)) == zoo.held(name, 3)
        assert_restored(zoo.held(name, 3), read_topic(zoo.broker.bootstrap, f"plain.{zoo.topic(name)}"))


def test_log_append_time_topic_takes_the_time_of_the_restore(zoo: Zoo, kbackup: Kbackup, topic_name: str) -> None:
    source = zoo.topic("stamped")
    report = kbackup.restore(zoo.archive, "-t", source, "--map", f"{source}={topic_name}", "--no-groups")
    assert [w for w in report["warnings"] if "LogAppendTime" in w and "CreateTime to keep theirs" in w]
    held, restored = zoo.held("stamped", 3)[0], read_topic(zoo.broker.bootstrap, topic_name)[0]
    assert [(r.key, r.value, r.headers) for r in restored] == [(r.key, r.value, r.headers) for r in held]
    assert {r.kind for r in restored} == {1}
    assert min(r.timestamp or 0 for r in restored) > max(r.timestamp or 0 for r in held)


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_an_archive_of_version_0_1_is_restored(
    kind: str, broker: Broker, kbackup: Kbackup, topic_name: str, tmp_path: Path
) -> None:
    folder = str(shutil.copytree(KEPT / "0.1.0" / kind, tmp_path / "archive"))
    key = f"file:{KEPT}/0.1.0/key" if kind == "encrypted" else ""
    names = ["--map-regex", rf"^(.*)$={topic_name}.\1", "--map-group", f"billing={topic_name}", *AS_THEY_ARE]
    kbackup.run("restore", folder, *names, *(["--encryption-key", key] if key else []))
    store, stand = open_store(folder, key=key, key_class=layout.key_class), positions(broker.bootstrap, topic_name)
    for topic, incarnation, committed in (("orders", 1, 17), ("clicks", 2, 4)):
        source, target = (
            archive_records(store, topic, incarnation=incarnation),
            read_topic(broker.bootstrap, f"{topic_name}.{topic}"),
        )
        assert_restored(source, target)
        assert stand[f"{topic_name}.{topic}", 0].offset == expected_offset(committed, source[0], target[0], -1)


def test_a_restore_that_an_expiration_overtakes_finds_no_damage(
    broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], spark: SparkSession
) -> None:
    archive = new_archive()
    topic = f"overtaken-{secrets.token_hex(6)}"
    broker.create_topic(topic)
    producer = Producer(broker.client(log_level=0))
    for day in (1, 2):
        # The records of the first backup are old, those of the second are not.
        moment = datetime(2026, 1, 1, tzinfo=UTC) if day == 1 else datetime.now(UTC)
        producer.produce(topic, b"value", timestamp=int(moment.timestamp() * 1000))
        assert producer.flush(30) == 0
        kbackup.backup(archive, "--topic", topic)

    class Beside(NoScreen):
        def show_plan(self, plan: RestorePlan, warnings: list[str]) -> None:
            expiry = Expiry(Policy(), timedelta(days=30), timedelta(0))
            assert expire(archive.store, expiry, 60, Silent(), confirm=True).records == 1

    options = RestoreOptions(map={topic: f"{topic}-back"}, restore_id=topic)
    target = {"bootstrap.servers": broker.bootstrap}
    resources = RestoreResources(target, archive.store, archive.store, lambda: spark, Silent())
    with pytest.raises(RefusedError, match="an expiration beside this command deleted objects"):
        restore(RestoreRequest.of(options), resources, Beside())
    # Its plan has the segment that is gone.
    with pytest.raises(RefusedError, match="expired or were merged since"):
        restore(RestoreRequest.of(options), resources)
    again = kbackup.restore(archive, "--map", f"{topic}={topic}-again", "--restore-id", f"{topic}-again")
    assert again["records"] == 1
