"""Test what a restore checks before its first record, and that a dry run changes nothing."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from scripts.dev.kafka import Broker
from tests.golden.java_archive import ROOT as JAVA
from tests.integration import topics
from tests.integration.conftest import Kbackup
from tests.integration.zoo import POSITIONS, SECOND, Zoo
from tests.support.truth import assert_restored, log_ends, positions, read_topic


def _all_topics(broker: Broker) -> set[str]:
    admin = AdminClient(broker.client())
    return set(admin.list_topics(timeout=30).topics)


def test_dry_run_shows_the_plan_and_touches_nothing(zoo: Zoo, kbackup: Kbackup) -> None:
    objects, existing = zoo.archive.objects(), _all_topics(zoo.broker)
    before = {position: positions(zoo.broker.bootstrap, zoo.group(position)) for position in POSITIONS}
    tasks = len(kbackup.spark.tasks)
    outcome = kbackup("restore", zoo.archive.url, "--dry-run", "--map-regex", "^=dry.")
    assert outcome.code == 0, outcome.err
    assert outcome.document["status"] == "planned"
    planned = {t["target"]: t["records"] for t in outcome.document["topics"]}
    assert planned == {f"dry.{zoo.topic(n)}": sum(map(len, zoo.held(n, 3).values())) for n in SECOND}
    assert _all_topics(zoo.broker) == existing
    assert {position: positions(zoo.broker.bootstrap, zoo.group(position)) for position in POSITIONS} == before
    assert zoo.archive.objects() == objects
    assert len(kbackup.spark.tasks) == tasks


@pytest.fixture(scope="module")
def unfit(zoo: Zoo) -> dict[str, str]:
    """Target topics, each unfit for the archived topic that it is for."""
    unfit = {name: f"unfit-{zoo.topic(name)}" for name in ("odd", "growing", "big", "long")}
    zoo.broker.create_topic(unfit["odd"], 3, config={"message.timestamp.after.max.ms": "1000"})
    zoo.broker.create_topic(unfit["growing"], 1)
    zoo.broker.create_topic(unfit["big"], 1, config={"max.message.bytes": "1000"})
    zoo.broker.create_topic(unfit["long"], 1)
    topics.produce(zoo.broker, unfit["long"], 0, [b"mine"])
    zoo.broker.create_topic(f"{zoo.prefix}_taken", 1)
    return unfit


@pytest.mark.parametrize("dry", [False, True])
def test_refusal_lists_every_problem_and_writes_nothing(
    zoo: Zoo, kbackup: Kbackup, unfit: dict[str, str], dry: bool
) -> None:
    objects, existing = zoo.archive.objects(), _all_topics(zoo.broker)
    ends = {t: log_ends(zoo.broker.bootstrap, t) for t in unfit.values()}
    arguments = [f"--map={zoo.topic(name)}={target}" for name, target in unfit.items()]
    arguments += [f"--topic={zoo.topic(name)}" for name in [*unfit, "late", "trimmed"]]
    taken = f"{zoo.prefix}.taken"  # of all topics to create, the target refuses this one
    arguments += [f"--map={zoo.topic('trimmed')}={taken}"]
    outcome = kbackup("restore", zoo.archive.url, *arguments, "--map", f"{zoo.topic('late')}=new", *["--dry-run"] * dry)
    assert outcome.code == 1
    assert "restore point 3" not in outcome.err, "one answer: no plan beside the refusal"
    message = outcome.document["error"]["message"]
    for problem, hint in (
        (f"topic {unfit['odd']} refuses timestamps more than 1000 ms ahead", "after.max.ms="),
        (f"topic {unfit['growing']} has 1 partitions, the archive 4", "--alter --topic"),
        (f"topic {unfit['big']} takes records of up to 1000 bytes", "--add-config max.message.bytes="),
        (f"topic {unfit['long']} is not empty", "--into-existing"),
        (f"topic {taken} can't be created: ", f"collides with existing topic: {zoo.prefix}_taken"),
    ):
        (line,) = [line for line in message.splitlines() if problem in line]
        assert hint in line
    assert "nothing was written" in message
    assert len(message.splitlines()) == 2 + len(unfit)
    assert _all_topics(zoo.broker) == existing
    assert {t: log_ends(zoo.broker.bootstrap, t) for t in unfit.values()} == ends
    assert zoo.archive.objects() == objects


def test_restores_that_would_fail_are_refused(zoo: Zoo, kbackup: Kbackup) -> None:
    config, isr = "--topic-config", "min.insync.replicas"
    for name, renamed, option, words in (
        ("long", "^=rf.", "--replication-factor=3", "wants replication factor 3, the target has 1 broker"),
        ("big", "^=s.", f"{config}=max.message.bytes=1000000", "of up to 1000000 bytes, the archive has one of 52"),
        ("long", "^.*$=same", f"--topic={zoo.topic('odd')}", "would both become same"),
        ("late", "^=sync.", f"{config}={isr}=2", f"topic sync.{{}} wants {isr}=2 with replication factor 1"),
    ):
        topic = zoo.topic(name)
        error = kbackup.restore(zoo.archive, "--topic", topic, "--map-regex", renamed, option, code=1)["error"]
        assert words.format(topic) in error["message"]
        if "replication" in words:
            advice = "give --replication-factor 1 or less" if renamed == "^=rf." else f"{config} {isr}=1"
            assert advice in f"{error['message']} {error['hint']}"


def test_retention_that_would_eat_the_records_is_warned_of(zoo: Zoo, kbackup: Kbackup) -> None:
    short = ["--topic-config", "retention.ms=3600000", "--topic-config", "retention.bytes=1000"]
    arguments = ["--dry-run", "-t", zoo.topic("long"), "--map-regex", "^=short."]
    assert kbackup.restore(zoo.archive, *arguments)["warnings"] == []
    size, age = kbackup.restore(zoo.archive, *arguments, *short)["warnings"]
    assert "keeps 1000 bytes a partition" in size
    assert "--topic-config retention.bytes=-1" in size
    assert "keeps records for 0.0 days" in age
    assert "--topic-config retention.ms=-1" in age


def test_timestamps_of_a_java_folder_are_read_before_anything_is_written(
    kbackup: Kbackup, broker: Broker, topic_name: str
) -> None:
    """No index of it has them. Topic orders.v1 has timestamps that a broker takes only where it is told to."""
    folder = str(JAVA / "archive")
    arguments = ["restore", folder, "-t", "orders.v1", "--map", f"orders.v1={topic_name}", "--no-groups"]
    state = ["--state", str(kbackup.config.parent / topic_name)]
    limit = "message.timestamp.after.max.ms"
    for dry in (["--dry-run"], []):
        error = kbackup(*arguments, *state, *dry, "--topic-config", f"{limit}=3600000").document["error"]
        assert f"topic {topic_name} refuses timestamps more than 3600000 ms ahead" in error["message"]
        assert f"--topic-config {limit}={(1 << 63) - 1}" in error["message"]
    assert topic_name not in _all_topics(broker)
    outcome = kbackup(*arguments, *state, "--topic-config", f"{limit}={(1 << 63) - 1}")
    assert (outcome.code, outcome.document["records"]) == (0, 145), outcome.err


def test_into_existing_appends_and_places_groups_on_the_new_records(
    zoo: Zoo, kbackup: Kbackup, topic_name: str
) -> None:
    source = zoo.topic("trimmed")
    arguments = ["-t", source, "--map", f"{source}={topic_name}"]
    kbackup.restore(zoo.archive, *arguments)
    first = read_topic(zoo.broker.bootstrap, topic_name)
    message = kbackup.restore(zoo.archive, *arguments, code=1)["error"]["message"]
    assert f"topic {topic_name} is not empty" in message
    assert read_topic(zoo.broker.bootstrap, topic_name) == first

    (warning,) = kbackup.restore(zoo.archive, *arguments, "--into-existing", "--dry-run")["warnings"]
    assert warning.startswith(f"target topic {topic_name} holds up to ")
    assert warning.endswith("and begins with the same records: they would be in it twice")
    skip = f"--skip={source}:0:{zoo.held('trimmed', 3)[0][0].offset}"
    (warning,) = kbackup.restore(zoo.archive, *arguments, "--into-existing", "--dry-run", skip)["warnings"]
    assert "same records" not in warning
    kbackup.restore(zoo.archive, *arguments, "--into-existing")
    both = read_topic(zoo.broker.bootstrap, topic_name)
    assert {p: records[: len(first[p])] for p, records in both.items()} == first
    second = {p: records[len(first[p]) :] for p, records in both.items()}
    assert_restored(zoo.held("trimmed", 3), second)
    stand = positions(zoo.broker.bootstrap, zoo.group("start"))
    assert stand[topic_name, 0].offset == second[0][0].offset


def test_unknown_names_are_usage_errors(zoo: Zoo, kbackup: Kbackup) -> None:
    for arguments, message in (
        (["-t", "no-such-topic"], "there is no topic no-such-topic in restore point 3"),
        (["-t", "/no-such-.*/"], "no topic in restore point 3 matches /no-such-.*/"),
        (["-g", "no-such-group"], "there is no group no-such-group"),
        (["--map", "no-such-topic=x"], "--map names topic no-such-topic"),
        (["--restore-point", "9"], "there is no restore point 9"),
    ):
        assert message in kbackup.restore(zoo.archive, *arguments, code=2)["error"]["message"]


def test_topics_are_selected_by_name_regex_and_exclusion(zoo: Zoo, kbackup: Kbackup) -> None:
    for arguments, names in (
        (["-t", zoo.topic("odd"), "-t", f"/{zoo.prefix}-l.*/"], ["odd", "ledger", "long", "late"]),
        (["-t", f"/{zoo.prefix}-o.*/", "--exclude-topic", "/.*-o[dv].*/"], ["open"]),
        (["--exclude-topic", "/.*-[^l]+/"], ["ledger", "late", "long"]),
    ):
        planned = kbackup.restore(zoo.archive, "--dry-run", "--map-regex", "^=dry.", *arguments)["topics"]
        assert sorted(t["source"] for t in planned) == sorted(map(zoo.topic, names))
