"""`kbackup restore --guide` on a real cluster: what a backup would still save, and what the commands of a case do."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kbackup.kafka.control.cluster import Cluster
from scripts.dev.kafka import Broker
from scripts.dev.s3 import S3Server
from tests.integration import topics
from tests.integration.backed_up import commit
from tests.integration.conftest import Archive, Kbackup
from tests.integration.guide import Guided, run_guide
from tests.support.truth import read_topic


def printed_command(guided: Guided, *words: str) -> list[str]:
    """Return the words of the last printed command that begins with `kbackup` and `words`."""
    commands = [shlex.split(line) for line in guided.out.splitlines() if line.startswith("  kbackup ")]
    beginning = ["kbackup", *words]
    return [command for command in commands if command[: len(beginning)] == beginning][-1]


def test_a_runbook_takes_a_backup_first_restores_and_ends_with_the_comparison(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, tmp_path: Path
) -> None:
    broker.create_topic(topic_name, 2)
    topics.produce(broker, topic_name, 0, topics.numbered(10))
    kbackup.backup(archive, "-t", topic_name)
    topics.produce(broker, topic_name, 0, topics.numbered(5))
    topics.produce(broker, topic_name, 1, topics.numbered(2))
    answers = f"""
        case = "poison-record"
        record = "{topic_name}:0:12"
        name = "{topic_name}-mended"
        run = true
    """
    guided = run_guide(kbackup.config, archive.url, tmp_path, answers, "--set", f"backup.topics={topic_name}")
    assert guided.code == 0, guided
    rows = [line.split() for line in guided.out.splitlines() if line.startswith(f"{topic_name} ")]
    assert [topic_name, "0", "5"] in rows
    assert [topic_name, "1", "2"] in rows
    assert "While the source still lives, take a backup first: kbackup backup" in guided.out
    assert "newest restore point: 2, taken" in guided.out, "the record is in the backup of just now alone"
    values = [record.value for record in read_topic(broker.bootstrap, f"{topic_name}-mended")[0]]
    assert values == [*topics.numbered(10), b"value-0", b"value-1", b"value-3", b"value-4"]
    verify = printed_command(guided, "verify")
    restore = printed_command(guided, "restore")
    id_ = restore[restore.index("--restore-id") + 1]
    assert verify[verify.index("--restore-id") + 1] == id_
    compared = kbackup.run(*verify[1:])
    assert (compared["restore_id"], compared["same"]) == (id_, 16)


def test_a_group_that_processed_wrongly_is_set_back_without_a_restore(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, tmp_path: Path
) -> None:
    broker.create_topic(topic_name)
    topics.produce(broker, topic_name, 0, topics.numbered(10))
    commit(broker, topic_name, topic_name, {0: 4})
    kbackup.backup(archive, "-t", topic_name)
    commit(broker, topic_name, topic_name, {0: 9})
    answers = f"""
        case = "processed-wrongly"
        group = "{topic_name}"
        time = "now"
        run = true
    """
    before = set(archive.objects())
    guided = run_guide(kbackup.config, archive.url, tmp_path, answers)
    assert guided.code == 0, guided
    assert "Every record of the source is in a restore point." in guided.out
    assert "1 group set, as of restore point 1" in guided.out
    plan = kbackup.run(*printed_command(guided, "groups", "plan")[1:])
    (group,) = plan["groups"]
    assert [(offset["now"], offset["target"]) for offset in group["offsets"]] == [(4, 4)]
    new = set(archive.objects()) - before
    assert all(key.startswith("restores/") for key in new), "no backup, and no record"


def test_a_source_that_does_not_answer_stops_no_guide(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, tmp_path: Path
) -> None:
    broker.create_topic(topic_name)
    topics.produce(broker, topic_name, 0, topics.numbered(10))
    kbackup.backup(archive, "-t", topic_name)
    topics.delete_topic(broker, topic_name)
    answers = f'case = "topic-deleted"\ntopic = "{topic_name}"\n'
    gone = ("--set", "source.bootstrap.servers=127.0.0.1:1")
    guided = run_guide(kbackup.config, archive.url, tmp_path, answers, *gone)
    assert guided.code == 0, guided
    assert "What the source has since is not known: source cluster at 127.0.0.1:1 did not answer" in guided.out
    assert "the restore would write 10 records" in guided.out


def test_a_topic_that_is_still_there_is_refused_with_a_free_name_and_without_bare_appending(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str, tmp_path: Path
) -> None:
    broker.create_topic(topic_name)
    broker.create_topic(f"{topic_name}-restored")
    topics.produce(broker, topic_name, 0, topics.numbered(10))
    kbackup.backup(archive, "-t", topic_name)
    answers = f'case = "topic-deleted"\ntopic = "{topic_name}"\n'
    guided = run_guide(kbackup.config, archive.url, tmp_path, answers)
    assert guided.code == 1, guided
    assert f"--map {topic_name}={topic_name}-restored-2" in guided.err
    assert "--into-existing, which writes every record of the archive once more" in guided.err


def undo_line(err: str) -> list[str]:
    """Return the words after `kbackup` of the command that undoes what a command has done."""
    (line,) = [line for line in err.splitlines() if line.startswith("to undo")]
    program, *words = shlex.split(line.partition(": ")[2])
    assert program == "kbackup"
    return words


def offset_of(broker: Broker, group: str) -> int:
    committed, failed = Cluster(broker.client(), "target").groups.committed([group])
    assert not failed
    (offset,) = committed[group]
    return offset.offset


@pytest.fixture
def remembers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine remembers what its restores wrote: an undo trusts that alone."""
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("remembers")
def test_without_a_target_its_address_is_asked_for_first_and_is_in_every_command_also_in_the_undo(
    broker: Broker, kbackup: Kbackup, minio_server: S3Server, archive: Archive, topic_name: str, tmp_path: Path
) -> None:
    gone = f"{topic_name}-gone"
    for name in (topic_name, gone):
        broker.create_topic(name)
        topics.produce(broker, name, 0, topics.numbered(10))
        commit(broker, name, name, {0: 4})
    kbackup.backup(archive, "-t", topic_name, "-t", gone)
    topics.delete_topic(broker, gone)
    Cluster(broker.client(), "source").groups.delete([gone])
    commit(broker, topic_name, topic_name, {0: 9})
    config = tmp_path / "a folder" / "kbackup.toml"
    config.parent.mkdir()
    config.write_text(f'[source]\n"bootstrap.servers" = "{broker.bootstrap}"\n{minio_server.toml}')
    answers = f"""
        case = "offsets-lost"
        group = "{topic_name}"
        target = "{broker.bootstrap}"
        run = true
    """

    guided = run_guide(config, archive.url, tmp_path, answers)

    assert guided.code == 0, guided
    asked = [
        "No cluster to restore into is configured",
        f"no longer in the source: 1 topic, {gone} (restore point 1)",
        f"no longer in the source: 1 consumer group, {gone} (restore point 1)",
        "What happened?",
        f"Address of the cluster to restore into? (host:port) {broker.bootstrap}",
        "Which group?",
        "Now the first line runs:",
    ]
    places = [guided.out.find(text) for text in asked]
    assert -1 not in places, list(zip(asked, places, strict=True))
    assert places == sorted(places)
    apply = printed_command(guided, "groups", "apply")
    assert apply[apply.index("--bootstrap-server") + 1] == broker.bootstrap
    assert offset_of(broker, topic_name) == 4
    undo = undo_line(guided.err)
    assert undo[undo.index("--config") + 1] == str(config)
    undone = kbackup(*undo)
    assert undone.code == 0, undone
    assert undone.document["confirmed"]
    assert offset_of(broker, topic_name) == 9


@pytest.mark.usefixtures("remembers")
def test_the_line_that_undoes_the_groups_of_a_restore_runs_as_it_is_printed(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name)
    topics.produce(broker, topic_name, 0, topics.numbered(10))
    commit(broker, topic_name, topic_name, {0: 4})
    kbackup.backup(archive, "-t", topic_name)
    restored = f"{topic_name}-restored"
    names = ("--map", f"{topic_name}={restored}", "--map-group", f"{topic_name}={restored}")
    done = kbackup("restore", archive.url, "--bootstrap-server", broker.bootstrap, "--topic", topic_name, *names)
    assert offset_of(broker, restored) == 4
    words = undo_line(done.err)
    assert "--archive" in words
    assert words[words.index("--bootstrap-server") + 1] == broker.bootstrap

    undone = kbackup(*words)

    assert undone.code == 0, undone
    assert undone.document["confirmed"]
    committed, _ = Cluster(broker.client(), "target").groups.committed([restored])
    assert not committed.get(restored)


def test_a_refusal_of_full_topics_names_the_missing_ones_and_how_to_set_a_group_alone(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    gone = f"{topic_name}-gone"
    for name in (topic_name, gone):
        broker.create_topic(name)
        topics.produce(broker, name, 0, topics.numbered(3))
    commit(broker, topic_name, topic_name, {0: 2})
    kbackup.backup(archive, "-t", topic_name, "-t", gone)
    topics.delete_topic(broker, gone)

    error = kbackup.restore(archive, "--group", topic_name, "--dry-run", code=1)["error"]

    assert f"target topic {topic_name} is not empty" in error["message"]
    command = f"kbackup groups apply --same-offsets --group {topic_name} --restore-point 1"
    assert f"to set the groups alone, without a record: {command}" in error["hint"]
    assert f"to restore only what the target lacks: --topic {gone}" in error["hint"]
    unnamed = kbackup.restore(archive, "--dry-run", code=1)["error"]
    assert "groups apply" not in unnamed["hint"]
