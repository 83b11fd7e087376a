"""A topic that the target refuses never stops the others, and the dry run names it before."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kbackup.kafka.produce import BlockProducer
from kbackup.types import TopicPartition as Place
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup
from tests.support.plain_records import Plain, block_of
from tests.support.truth import positions, read_topic

NOISE = random.Random(42)


@dataclass
class Odd:
    """An archive with topics of one prefix, each odd in its way but for `plain`, and a group on two of them."""

    broker: Broker
    archive: Archive
    prefix: str
    kbackup: Kbackup

    def topic(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def line(self, name: str, *names: str) -> list[str]:
        """Return the options of a restore under the prefix `name`, of topics by their own names."""
        selected = [f"--topic={self.topic(each)}" for each in names]
        return [*selected, f"--map-regex=^={name}.", f"--restore-id={self.prefix}-{name}"]

    def restore(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.kbackup.restore(self.archive, *arguments, code=code)

    def count(self, target: str) -> int:
        return sum(map(len, read_topic(self.broker.bootstrap, target).values()))


@pytest.fixture(scope="module")
def odd(broker: Broker, kbackup: Kbackup, new_archive: Any) -> Odd:
    made = Odd(broker, new_archive(), f"odd{NOISE.getrandbits(40):x}", kbackup)
    producer = Producer(broker.client(**{"compression.type": "zstd", "message.max.bytes": 10_000_000}))
    group = Consumer(broker.client(**{"group.id": made.prefix}))
    configs = {"small": {"max.message.bytes": "131072"}}
    for name in ("plain", "keyless", "small", "packed", "keyed"):
        broker.create_topic(made.topic(name), config=configs.get(name))
    for number in range(200):
        producer.produce(made.topic("plain"), b"v%d" % number, b"k")
        producer.produce(made.topic("keyless"), b"v%d" % number, b"k" if number < 150 else None)
        producer.produce(made.topic("keyed"), b"v%d" % number, b"k%d" % number)
    for _ in range(200):
        producer.produce(made.topic("small"), NOISE.randbytes(4000), b"k")
        producer.flush()  # the topic takes no more in a batch
    producer.produce(made.topic("packed"), b'{"sku":"ABC-1","qty":1},' * 100_000, b"k")
    assert producer.flush(30) == 0
    for name in ("plain", "keyless"):
        group.commit(offsets=[TopicPartition(made.topic(name), 0, 7)], asynchronous=False)
    group.close()
    for name in ("keyless", "keyed"):
        set_config(broker, made.topic(name), "cleanup.policy", "compact")
    kbackup.backup(made.archive, f"--topic=/{made.prefix}-.*/")
    return made


def set_config(broker: Broker, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(broker.client(log_level=0))
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)


def test_the_dry_run_names_what_the_restore_then_leaves_out(odd: Odd) -> None:
    line = odd.line("out", "plain", "keyless", "keyed")
    promise = odd.restore(*line, "--dry-run", code=3)
    report = odd.restore(*line, code=3)
    for document in (promise, report):
        (failed,) = document["failed"]
        assert failed["target"] == f"out.{odd.topic('keyless')}"
        assert f"(50 records, the first is {odd.topic('keyless')}:0:150)" in failed["reason"]
        assert "--topic-config cleanup.policy=delete" in failed["hint"]
    assert [t["source"] for t in promise["topics"]] == [odd.topic("keyed"), odd.topic("plain")]
    assert report["status"] == "incomplete"
    assert odd.count(f"out.{odd.topic('plain')}") == 200
    admin = AdminClient(odd.broker.client())
    assert f"out.{odd.topic('keyless')}" not in admin.list_topics(timeout=30).topics


def test_the_same_id_goes_on_when_the_target_is_mended(odd: Odd) -> None:
    line = odd.line("mended", "plain", "keyless")
    first = odd.restore(*line, code=3)
    (group,) = first["groups"]
    assert [offset["topic"] for offset in group["offsets"]] == [f"mended.{odd.topic('plain')}"]
    assert group["left_out"] == [f"topic {odd.topic('keyless')} is not restored"]
    again = odd.restore(*line, code=3)
    assert again["failed"] == first["failed"]
    assert "restore_point was" in odd.restore(*line, "--restore-point=1", code=10)["error"]["message"]
    done = odd.restore(*line, "--topic-config=cleanup.policy=delete")
    assert (done["status"], done["failed"], done["missing"]) == ("restored", [], [])
    assert {t["source"]: t["records"] for t in done["topics"]} == {odd.topic(n): 200 for n in ("plain", "keyless")}
    assert odd.count(f"mended.{odd.topic('keyless')}") == odd.count(f"mended.{odd.topic('plain')}") == 200
    assert set(positions(odd.broker.bootstrap, odd.prefix)) >= {(f"mended.{odd.topic('keyless')}", 0)}
    assert "was finished before" in odd.restore(*line)["warnings"][-1]


def test_a_topic_can_be_left_out_of_a_restore_that_was_begun(odd: Odd) -> None:
    line = odd.line("without", "plain", "keyless")
    odd.restore(*line, code=3)
    unfinished = odd.kbackup("verify", odd.archive.url, "--against", "target", *line[-1:])
    assert "is not finished" in unfinished.document["error"]["message"]
    done = odd.restore(*line, f"--exclude-topic={odd.topic('keyless')}")
    assert (done["excluded"], done["missing"]) == ([odd.topic("keyless")], [])
    assert [t["source"] for t in done["topics"]] == [odd.topic("plain")]
    assert odd.kbackup("verify", odd.archive.url, "--against", "target", *line[-1:]).code == 0


def test_a_skipped_record_refuses_nothing(odd: Odd) -> None:
    line = odd.line("skipped", "keyless")
    skip = f"--skip={odd.topic('keyless')}:0:150-200"
    assert odd.restore(*line, skip)["records"] == 150
    only = odd.restore(*odd.line("alone", "keyless"), code=1)["error"]["message"]
    assert "takes no record without a key" in only
    assert "nothing was written" in only


def test_what_fits_in_a_smaller_batch_or_packed_is_restored(odd: Odd) -> None:
    """Random records of a topic with a small limit, and one of 2.4 MB that compression makes small."""
    line = odd.line("fits", "small", "packed")
    assert odd.restore(*line, "--dry-run")["missing"] == []
    assert odd.restore(*line)["records"] == 201
    refused = odd.restore(*odd.line("tiny", "small"), "--topic-config=max.message.bytes=3000", code=1)
    assert "takes records of up to 3000 bytes, the archive has one of 40" in refused["error"]["message"]


def test_internal_topics_are_no_targets(odd: Odd) -> None:
    plain, keyed = odd.topic("plain"), odd.topic("keyed")
    own = [f"--topic={plain}", f"--topic={keyed}", f"--map={plain}=__consumer_offsets", f"--map={keyed}=own-{keyed}"]
    report = odd.restore(*own, "--dry-run", code=3)
    assert "topic __consumer_offsets is Kafka's own" in report["missing"][0]
    assert f"--exclude-topic {plain}" in report["missing"][0]
    alone = odd.restore(f"--topic={plain}", f"--map={plain}=__transaction_state", "--dry-run", code=1)
    assert "topic __transaction_state is Kafka's own" in alone["error"]["message"]


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ("retention.ms=7d", "whole milliseconds"),
        ("segment.bytes=1GB", "whole bytes"),
        ("min.insync.replicas=one", "Not a number"),
        ("cleanup.policy=compct", "must be one of"),
        ("no.such.config=1", "Unknown topic config name"),
    ],
)
def test_a_config_of_another_form_is_a_usage_error(odd: Odd, config: str, form: str) -> None:
    error = odd.restore(*odd.line("form", "plain"), "--dry-run", f"--topic-config={config}", code=2)["error"]
    assert error["message"].startswith(f"--topic-config {config}: the target refuses it: ")
    assert form in f"{error['message']} {error['hint']}"


def test_configs_of_a_topic_that_exists_are_not_changed_in_silence(odd: Odd, topic_name: str) -> None:
    odd.broker.create_topic(topic_name)
    line = [f"--topic={odd.topic('plain')}", f"--map={odd.topic('plain')}={topic_name}", "--dry-run"]
    (warning,) = odd.restore(*line, "--topic-config=retention.bytes=-7")["warnings"]
    assert warning.endswith("exists: --topic-config does not change it, and retention.bytes=-7 is not set")
    set_config(odd.broker, topic_name, "max.message.bytes", "1000")
    small = [f"--topic={odd.topic('small')}", f"--map={odd.topic('small')}={topic_name}", "--dry-run"]
    message = odd.restore(*small, code=1)["error"]["message"]
    assert f"--alter --entity-type topics --entity-name {topic_name} --add-config max.message.bytes=" in message


def test_a_topic_with_aborted_records_alone_counts_as_empty(odd: Odd, topic_name: str) -> None:
    odd.broker.create_topic(topic_name)
    place = Place(topic_name, 0)
    with closing(BlockProducer(odd.broker.client(), topic_name, "kbackup-restore-aborted")) as producer:
        producer.start([place])
        producer.send(place, block_of([Plain(b"k", b"v")] * 20))
        producer.flush()  # and closed without a commit
    line = [f"--topic={odd.topic('plain')}", f"--map={odd.topic('plain')}={topic_name}"]
    assert f"target topic {topic_name} holds aborted records only" in odd.restore(*line)["warnings"][0]
    assert odd.count(topic_name) == 200
    assert "is not empty" in odd.restore(*line, code=1)["error"]["message"]


def test_a_topic_that_is_deleted_meanwhile_fails_alone(odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is deleted when all topics are there and no record is written."""
    from kbackup.jobs.restore import job

    create, gone = job.create_topics, f"gone.{odd.topic('keyed')}"

    def create_and_delete(*arguments: Any) -> Any:
        failed = create(*arguments)
        topics.delete_topic(odd.broker, gone)
        return failed

    monkeypatch.setattr(job, "create_topics", create_and_delete)
    line = odd.line("gone", "plain", "keyed")
    # librdkafka takes a topic that a broker does not know for a new one, and would wait for it for 30 s.
    report = odd.restore(*line, "--set=target.topic.metadata.propagation.max.ms=3000", code=3)
    assert [each["target"] for each in report["failed"]] == [gone]
    assert odd.count(f"gone.{odd.topic('plain')}") == 200
    monkeypatch.undo()
    done = odd.restore(*line)
    assert done["records"] == 400
    assert odd.count(gone) == 200
    assert odd.count(f"gone.{odd.topic('plain')}") == 200


def test_a_drill_compares_what_the_target_takes(odd: Odd) -> None:
    names = [f"--topic={odd.topic(name)}" for name in ("plain", "small")]
    limit = "--topic-config=max.message.bytes=3000"
    report = odd.kbackup.run("drill", odd.archive.url, "--on-source", *names, limit, code=3)
    assert report["result"] == "failed"
    assert f"topic {odd.topic('small')} is not restored" in report["findings"][0]
    assert (report["comparison"]["records"], report["comparison"]["same"]) == (200, 200)
