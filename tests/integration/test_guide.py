"""`kbackup restore --guide` on a real cluster: what a backup would still save, and what the commands of a case do."""

from __future__ import annotations

import shlex
from pathlib import Path

from scripts.dev.kafka import Broker
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
