"""`kbackup restore --guide`: its questions and their answers, its cases, and the commands that it prints."""

from __future__ import annotations

import io
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest

from kbackup.archive.reader import Archive, open_archive
from kbackup.cli import cli
from kbackup.cli.common.command_context import CommandContext, FlagValues
from kbackup.cli.common.output import Reporter
from kbackup.cli.guide import is_free, show_commands, show_deleted, show_gone
from kbackup.cli.guide.answers import FileAnswers, GuideQuestion, open_answers
from kbackup.cli.guide.archived import GuidedArchive, SourceSince
from kbackup.cli.guide.cases import CASES, Dialog, GuideRemedy, Step, case_of
from kbackup.cli.guide.clusters import DeletedRange, GuidedTarget
from kbackup.config import ConfigFiles, load
from kbackup.errors import RefusedError, UsageError
from kbackup.kafka.client import Properties
from kbackup.store import open_store
from kbackup.store.base import Store
from tests.support.archives import commit_point, group_at, partition_state, topic_of
from tests.support.printed import Kbackup
from tests.support.target_topics import finish_restore, note_topics, target_topic

ANSWERS = {
    "topic-deleted": {"topic": "orders"},
    "bad-records": {"topic": "orders", "time": "2026-01-31T14:05:00Z"},
    "processed-wrongly": {"group": "billing", "time": "now"},
    "offsets-lost": {"group": "billing"},
    "cluster-gone": {"servers": "broker:9092"},
    "poison-record": {"record": "orders:0:3"},
}


@pytest.fixture(autouse=True)
def flags() -> Iterator[None]:
    """The flags of a command line, in which times of the answers have their zone."""
    with click.Context(cli, obj=FlagValues()):
        yield


class FakeTarget(GuidedTarget):
    """A cluster that answers as it is told."""

    cluster_id = "new"
    topic_names: Collection[str] = ()
    has_authorizer = True
    deleted: Sequence[DeletedRange] = ()
    live: Sequence[str] = ()
    """The members of a group, each time that they are asked for; none after that."""

    def members(self, group: str) -> str:
        now, *self.live = [*self.live, ""]
        return now

    def deleted_records(self, store: Store, group: str, moment: str | None) -> list[DeletedRange]:
        return list(self.deleted)

    def check_reachable(self) -> None:
        """It answers."""


def fake_target(topics: Collection[str] = (), cluster_id: str = "new") -> FakeTarget:
    target = FakeTarget({}, "broker:9092")
    target.topic_names = topics
    target.cluster_id = cluster_id
    return target


@pytest.fixture
def unused_port() -> int:
    """A port at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def dialog(url: str, answers: dict[str, str], *, given_id: str | None = "an-id", **more: Any) -> Dialog:
    """A guide on the archive at `url`, without a terminal."""
    more.setdefault("open_target", FakeTarget)
    context = CommandContext(load([], ConfigFiles(os.devnull)), Reporter())
    store = open_store(url)
    archive = GuidedArchive(store, open_archive(store), store)
    return Dialog(context, archive, FileAnswers("answers", answers), given_id=given_id, **more)


def remedy(url: str, case_name: str, **answers: str) -> GuideRemedy:
    """What mends a case, with usual answers but for those that are given."""
    case = next(case for case in CASES if case.name == case_name)
    return case.remedy(dialog(url, {**ANSWERS[case_name], **answers}))


def steps_of(remedy: GuideRemedy) -> list[Step]:
    return [remedy.dry_run, remedy.run, remedy.verify, *remedy.otherwise, *remedy.left_out]


@pytest.mark.parametrize("name", list(ANSWERS))
def test_every_command_of_a_case_is_one_that_kbackup_takes(root: str, name: str) -> None:
    for step in steps_of(remedy(root, name)):
        command: click.Command = cli
        context, words = click.Context(cli, obj=FlagValues(), **cli.context_settings), list(step.words)
        while isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None, step
            command = found
            context = (
                click.Context(command, parent=context)
                if isinstance(command, click.Group)
                else command.make_context(command.name, words, parent=context)
            )


@pytest.mark.parametrize("name", list(ANSWERS))
def test_only_the_first_command_of_a_case_writes_nothing_and_the_last_verifies(root: str, name: str) -> None:
    mends = remedy(root, name)
    assert "--dry-run" in mends.dry_run.words or mends.dry_run.words[:2] == ("groups", "plan")
    assert "--dry-run" not in mends.run.words
    assert mends.verify.words[0] == "verify" or mends.verify == mends.dry_run or mends.verify.words[1] == "plan"


@pytest.mark.parametrize("name", ["topic-deleted", "bad-records", "cluster-gone", "poison-record"])
def test_dry_run_restore_and_comparison_have_one_id(root: str, name: str) -> None:
    mends = remedy(root, name)
    for step in (mends.dry_run, mends.run, mends.verify):
        at = step.words.index("--restore-id")
        assert step.words[at + 1] == "an-id", step
    assert [word for word in mends.dry_run.words if word != "--dry-run"] == list(mends.run.words)


def test_a_new_id_tells_what_the_restore_is_about(root: str) -> None:
    made = dialog(root, {}, given_id=None)
    id_ = made.restore_id("payments.eu")
    assert id_.startswith("payments-eu-20")
    assert made.restore_id("something else") == id_


@pytest.mark.parametrize(("remembers", "confirmed"), [("true", ("--confirm",)), ("false", ())])
def test_the_guides_undo_is_confirmed_where_this_machine_remembers_what_it_wrote(
    root: str, monkeypatch: pytest.MonkeyPatch, remembers: str, confirmed: tuple[str, ...]
) -> None:
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", remembers)
    mends = remedy(root, "processed-wrongly")
    assert mends.run.undo == ("groups", "undo", "--restore-id", "an-id", *confirmed)


def test_consumers_that_processed_wrongly_are_set_back_without_moving_a_record(root: str) -> None:
    mends = remedy(root, "processed-wrongly")
    assert mends.dry_run.words[:5] == ("groups", "plan", "--same-offsets", "--group", "billing")
    assert mends.run.words[:5] == ("groups", "apply", "--same-offsets", "--group", "billing")
    first, *_, by_map, _ = mends.otherwise
    assert first.words[:5] == ("restore", "--topic", "orders", "--map", "orders=orders-restored")
    assert by_map.words[:4] == ("groups", "apply", "--restore-id", "an-id-restored")


def test_a_comparison_with_a_new_cluster_names_it_as_the_restore_does(root: str) -> None:
    mends = remedy(root, "cluster-gone")
    for step in (mends.dry_run, mends.run, mends.verify):
        at = step.words.index("--bootstrap-server")
        assert step.words[at + 1] == "broker:9092", step
    assert "--with" in mends.run.words
    assert "--with" not in remedy(root, "cluster-gone", settings="no").run.words


@pytest.mark.parametrize(
    ("name", "adoption"), [("cluster-gone", "--adopt-cluster"), ("topic-deleted", "--adopt-topics")]
)
def test_offsets_that_somebody_keeps_are_restored_as_they_were(
    root: str, name: str, adoption: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = remedy(root, name)
    assert "--same-offsets" not in plain.run.words
    assert adoption not in plain.then
    mends = remedy(root, name, same_offsets="yes")
    for step in (mends.dry_run, mends.run):
        assert "--same-offsets" in step.words
    assert f"the next backup needs {adoption} once" in mends.then
    assert "the dry run says how long for each topic" in capsys.readouterr().out


def test_a_topic_beside_another_one_gets_new_offsets_without_a_question(root: str) -> None:
    made = dialog(root, {"topic": "orders", "name": "orders-restored", "same_offsets": "yes"})
    (case,) = [case for case in CASES if case.name == "topic-deleted"]
    assert "--same-offsets" not in case.remedy(made).run.words
    with pytest.raises(UsageError, match="same_offsets"):
        made.answers.finish([])


def test_a_poison_record_can_be_passed_without_a_restore(root: str) -> None:
    (cheaper,) = remedy(root, "poison-record").cheaper
    assert "--reset-offsets --to-offset 4 --topic orders:0" in cheaper


@pytest.mark.parametrize(
    ("name", "answers", "message", "hint"),
    [
        ("topic-deleted", {"topic": "odrers"}, "there is no topic odrers in restore point 2", "did you mean orders?"),
        ("topic-deleted", {"topic": "x"}, "there is no topic x in restore point 2", "there are clicks, orders"),
        ("topic-deleted", {"name": "a b"}, "topic orders can't be restored as 'a b'", "1 to 249"),
        ("offsets-lost", {"group": "biling"}, "there is no group biling in restore point 2", "did you mean billing?"),
        ("offsets-lost", {"time": "2000-01-01T00:00:00Z"}, "no restore point was captured at or before", "later time"),
        ("processed-wrongly", {"time": "2000-01-01T00:00:00Z"}, "no restore point was captured", "later time"),
        ("bad-records", {"time": "2000-01-01T00:00:00Z"}, "is before the archive begins", "give a later time"),
        ("bad-records", {"time": "soon"}, "the answer soon is not a time", "14:05"),
        ("poison-record", {"record": "orders:0"}, "orders:0 is not the address of a record", "topic:partition:offset"),
        ("poison-record", {"record": "orders:0:1-3"}, "is not the address of a record", "topic:partition:offset"),
        ("poison-record", {"record": "orders:0:41"}, "orders-0 is archived from 0 to 41 (exclusive)", "backup first"),
        ("poison-record", {"record": "orders:7:1"}, "topic orders has no partition 7", "3 partitions"),
        ("poison-record", {"record": "odrers:0:1"}, "there is no topic odrers", "did you mean orders?"),
        ("cluster-gone", {"servers": "-x"}, "-x is not an address", "host:port"),
        ("cluster-gone", {"settings": "maybe"}, "maybe is neither yes nor no", "answer yes or no"),
    ],
)
def test_a_wrong_answer_is_told_with_what_the_archive_has(
    root: str, name: str, answers: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as raised:
        remedy(root, name, **answers)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_time_is_the_same_in_each_command(root: str) -> None:
    mends = remedy(root, "bad-records", time="2h ago")
    at = mends.dry_run.words.index("--to-time")
    assert mends.dry_run.words[at + 1].endswith("Z")
    assert mends.dry_run.words[at + 1] == mends.run.words[at + 1]


# What the newest restore point no longer has as it was.


def point_after(archive: Archive, *, topics: bool = False, groups: bool = False) -> None:
    """Commit restore point 3 in which clicks was created again (`topics`), or without the group billing."""
    recreated = topic_of("clicks", [partition_state(0, 0, 7)], captured=3, incarnation=2)
    newest = archive.head
    assert newest is not None
    kept = [topic for topic in newest.topics if topic.name != "clicks"]
    now = [recreated, *kept] if topics else list(newest.topics)
    held = [group_at("billing", ("orders", 0, 17))] if groups else [group_at("late", ("orders", 0, 41))]
    commit_point(archive, 3, topics=now, segments=[], groups=held)


def test_a_topic_that_was_created_again_is_restored_from_the_restore_point_before(mine: str) -> None:
    point_after(open_archive(open_store(mine)), topics=True)
    mends = remedy(mine, "topic-deleted", topic="clicks")
    assert mends.run.words == (
        *("restore", "--topic", "clicks", "--map", "clicks=clicks-restored"),
        *("--restore-point", "2", "--restore-id", "an-id"),
    )


def note_restore(url: str, *, restore_point: int, is_finished: bool = True) -> None:
    """Write down that a restore has created the topic clicks of restore point 3 again."""
    store = open_store(url)
    archive = open_archive(store)
    made = target_topic("id of clicks", source="clicks", target="clicks")
    cluster_id = archive.restore_point("latest").cluster_id
    archive_id = archive.info.id
    note_topics(store, "r-1", [made], cluster_id=cluster_id, archive_id=archive_id, restore_point=restore_point)
    if is_finished:
        finish_restore(store, "r-1")


def test_a_topic_that_a_restore_has_created_again_is_restored_from_the_newest_restore_point(mine: str) -> None:
    point_after(open_archive(open_store(mine)), topics=True)
    note_restore(mine, restore_point=2)
    words = remedy(mine, "topic-deleted", topic="clicks").run.words
    assert words[words.index("--restore-point") + 1] == "3", "it has what came after the restore as well"
    assert "--map" not in words


@pytest.mark.parametrize(
    ("restore_point", "is_finished"), [(2, False), (0, True)], ids=["unfinished", "of an older restore point"]
)
def test_a_topic_that_came_back_in_part_is_restored_from_the_restore_point_before(
    mine: str, restore_point: int, is_finished: bool
) -> None:
    point_after(open_archive(open_store(mine)), topics=True)
    note_restore(mine, restore_point=restore_point, is_finished=is_finished)
    words = remedy(mine, "topic-deleted", topic="clicks").run.words
    assert words[words.index("--restore-point") + 1] == "2"
    assert "clicks=clicks-restored" in words


def test_a_topic_that_the_source_has_again_is_restored_beside_it(root: str) -> None:
    made = dialog(root, {"topic": "orders"})
    made.recreated = {"orders"}
    mends = CASES[0].remedy(made)
    assert "orders=orders-restored" in mends.run.words


def test_a_group_that_the_newest_restore_point_lacks_is_set_as_of_its_last_capture(mine: str) -> None:
    archive = open_archive(open_store(mine))
    seen_at = archive.groups(2).captured_at
    point_after(archive)
    assert seen_at in remedy(mine, "offsets-lost").run.words


def test_lost_offsets_are_those_before_the_backup_that_the_guide_has_taken(root: str) -> None:
    captured_at = open_archive(open_store(root)).groups(1).captured_at
    made = dialog(root, {"group": "billing"}, before_backup=captured_at)
    (case,) = [case for case in CASES if case.name == "offsets-lost"]
    assert captured_at in case.remedy(made).run.words
    assert "--to-time" not in remedy(root, "offsets-lost").run.words


# What older restore points have.


def test_a_new_cluster_is_told_which_topics_and_groups_only_older_restore_points_have(mine: str) -> None:
    point_after(open_archive(open_store(mine)))
    topic, group = remedy(mine, "cluster-gone").left_out
    assert topic.why == "topic clicks is in restore point 1, not in 3; to restore it as well"
    assert topic.words == (
        *("restore", "--topic", "clicks", "--restore-point", "1"),
        *("--bootstrap-server", "broker:9092", "--restore-id", "an-id-clicks"),
    )
    assert group.why == "group billing is in restore point 2, not in 3; to set it after the restore"
    assert group.words == (
        *("groups", "apply", "--restore-id", "an-id", "--group", "billing", "--restore-point", "2"),
        *("--bootstrap-server", "broker:9092"),
    )


def test_a_poison_record_tells_only_the_older_groups_of_its_topic(mine: str) -> None:
    archive = open_archive(open_store(mine))
    held = [group_at("elsewhere", ("clicks", 0, 1))]
    assert archive.head is not None
    commit_point(archive, 3, topics=list(archive.head.topics), groups=held)
    commit_point(archive, 4, topics=list(archive.head.topics))
    told = [step.words[5] for step in remedy(mine, "poison-record").left_out]
    assert told == ["billing", "late"]


def test_a_typing_error_in_a_group_that_only_older_restore_points_have_is_told(mine: str) -> None:
    point_after(open_archive(open_store(mine)))
    with pytest.raises(UsageError) as raised:
        remedy(mine, "offsets-lost", group="biling")
    assert raised.value.hint == "did you mean billing?"


# What the source no longer has.


def test_each_topic_and_group_of_the_archive_has_its_last_restore_point(mine: str) -> None:
    point_after(open_archive(open_store(mine)))
    archive = dialog(mine, {}).archive
    assert archive.last_points_of_topics == {"clicks": 1, "orders": 3}
    assert archive.last_points_of_groups == {"billing": 2, "late": 3}


def test_topics_and_groups_that_are_gone_are_named_with_their_last_restore_point(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = {f"topic-{number:02}": 2 for number in range(12)}
    show_gone(SourceSince("source", gone_topics=many, gone_groups={"billing": 41}))
    topics, groups = capsys.readouterr().out.splitlines()
    assert topics.startswith("In the archive, and no longer in the source: 12 topics, topic-00 (restore point 2), ")
    assert topics.endswith("topic-09 (restore point 2) and 2 more")
    assert groups == "In the archive, and no longer in the source: 1 consumer group, billing (restore point 41)"


def test_groups_of_a_broker_that_does_not_answer_are_not_called_gone(capsys: pytest.CaptureFixture[str]) -> None:
    show_gone(SourceSince("source", groups_problem="broker 2: timed out"))
    expected = "Which consumer groups the source no longer has is not known: broker 2: timed out\n"
    assert capsys.readouterr().out == expected


# Times after the newest restore point.


@pytest.mark.parametrize("name", ["bad-records", "processed-wrongly", "offsets-lost"])
def test_a_time_after_the_newest_restore_point_is_told_and_asked_about(
    root: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    remedy(root, name, time="2026-02-01T00:00:00Z")
    printed = capsys.readouterr().out
    assert "the newest restore point before that is 2, taken at 2026-01-" in printed
    assert "whatever the source has got since is not in it" in printed
    assert "Go on with restore point 2? (yes, no) yes" in printed
    with pytest.raises(RefusedError, match="no restore point was taken after 2026-02-01"):
        remedy(root, name, time="2026-02-01T00:00:00Z", after_newest="no")


def test_a_time_within_the_archive_is_asked_for_once_and_groups_tell_their_restore_point(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    captured_at = open_archive(open_store(root)).groups(1).captured_at
    remedy(root, "processed-wrongly", time=captured_at)
    printed = capsys.readouterr().out
    assert "offsets as of restore point 1" in printed
    assert "Go on with" not in printed


# What the target has.


def test_the_cluster_to_restore_into_is_asked_for_where_none_is_configured(root: str) -> None:
    made = dialog(root, {**ANSWERS["poison-record"], "target": "broker:9092"})
    made.ask_target()
    assert made.target is not None
    assert made.target.servers == "broker:9092"
    assert made.target_words == ("--bootstrap-server", "broker:9092")
    assert "--bootstrap-server broker:9092 --group GROUP" in CASES[5].remedy(made).cheaper[0]


def test_the_source_is_refused_as_the_address_of_a_new_cluster(root: str) -> None:
    def open_source(properties: Properties, servers: str) -> GuidedTarget:
        return fake_target(cluster_id="source")

    made = dialog(root, ANSWERS["cluster-gone"], open_target=open_source)
    (case,) = [case for case in CASES if case.name == "cluster-gone"]
    with pytest.raises(UsageError, match="broker:9092 is the cluster that was backed up, source: it is not gone"):
        case.remedy(made)


def test_an_address_at_which_nothing_listens_is_refused(unused_port: int) -> None:
    with pytest.raises(UsageError, match=f"nothing answers at 127.0.0.1:{unused_port}"):
        GuidedTarget({}, f"127.0.0.1:{unused_port}").check_reachable()


@pytest.mark.parametrize("name", ["bad-records", "poison-record"])
def test_a_topic_beside_gets_a_name_that_is_free(root: str, name: str) -> None:
    target = fake_target(["orders", "orders-restored", "orders-restored-2"])
    (case,) = [case for case in CASES if case.name == name]
    mends = case.remedy(dialog(root, ANSWERS[name], target=target))
    assert "orders=orders-restored-3" in mends.run.words


@pytest.mark.parametrize("name", ["bad-records", "poison-record"])
@pytest.mark.parametrize("taken", ["orders", "other"])
def test_a_name_that_the_target_has_is_refused_for_a_topic_beside(root: str, name: str, taken: str) -> None:
    (case,) = [case for case in CASES if case.name == name]
    made = dialog(root, {**ANSWERS[name], "name": taken}, target=fake_target(["orders", "other"]))
    with pytest.raises(UsageError) as raised:
        case.remedy(made)
    assert raised.value.message == f"answers: name: the target has a topic {taken} already"
    assert raised.value.hint == "give another name, such as orders-restored"


def test_a_deleted_topic_under_another_name_ends_as_bad_records_do(root: str) -> None:
    beside = remedy(root, "topic-deleted", name="orders-2")
    assert beside.then == remedy(root, "bad-records").then
    assert remedy(root, "topic-deleted").then != beside.then


# Groups that can't be set yet, and records that are deleted.


class Waiting:
    """Somebody who answers yes, and who does what the guide waits for."""

    def __init__(self) -> None:
        self.waited: list[str] = []

    def answer(self, question: GuideQuestion) -> str:
        return "yes"

    def wait(self, text: str) -> bool:
        self.waited.append(text)
        return True

    def finish(self, maybe: Sequence[str]) -> None:
        """Nothing is left over."""


def set_back(url: str, target: FakeTarget) -> GuideRemedy:
    (case,) = [case for case in CASES if case.name == "processed-wrongly"]
    return case.remedy(dialog(url, ANSWERS["processed-wrongly"], target=target))


def test_a_group_with_live_members_is_waited_for_until_they_are_gone(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = fake_target()
    target.live = ["2 live members", "1 live member"]
    somebody = Waiting()
    assert is_free(set_back(root, target), somebody)
    assert somebody.waited == ["Stop the consumers of billing, then press Enter to look again"] * 2
    assert "group billing can't be set yet: it has 1 live member" in capsys.readouterr().out


def test_a_group_with_live_members_is_not_waited_for_where_a_file_answers(root: str) -> None:
    target = fake_target()
    target.live = ["2 live members"]
    assert not is_free(set_back(root, target), FileAnswers("answers", {}))


def test_deleted_records_are_counted_by_partition_and_only_then_restored_beside(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = fake_target()
    mends = set_back(root, target)
    show_commands(mends, ())
    show_deleted(mends, ())
    assert "orders-restored" not in capsys.readouterr().out
    target.deleted = [DeletedRange("orders", 0, 50, 120)]
    show_deleted(mends, ("--archive", "a"))
    printed = capsys.readouterr().out
    assert "orders-0: 70 records (50 to 119) are deleted in the topic" in printed
    assert "kbackup restore --topic orders --map orders=orders-restored" in printed


def test_the_command_that_undoes_a_step_is_whole(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_commands(remedy(root, "offsets-lost"), ("--set", "target.bootstrap.servers=broker:9092"))
    undo = "kbackup groups undo --restore-id an-id --set target.bootstrap.servers=broker:9092"
    assert f"# sets them; to undo it: {undo}\n" in capsys.readouterr().out


# Words for cases, and the processes of commands.


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("a topic was deleted", "topic-deleted"),
        ("consumers processed records wrongly", "processed-wrongly"),
        ("Bad records", "bad-records"),
        ("the cluster is gone", "cluster-gone"),
        ("poison", "poison-record"),
        ("5", "cluster-gone"),
    ],
)
def test_a_case_is_told_by_its_words(typed: str, name: str) -> None:
    assert case_of(typed) == name


@pytest.mark.parametrize("typed", ["topic", "7", "coffee"])
def test_words_of_no_case_and_of_several_are_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="is no case"):
        case_of(typed)


COMMAND = """
import signal, sys, time
def end(number, frame):
    time.sleep(0.5)
    print("told", flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
time.sleep(60)
"""


def to_the_group(pid: int) -> None:
    """Send Ctrl-C as a terminal does: to the group of the guide."""
    os.killpg(pid, signal.SIGINT)


def interrupt(pid: int) -> None:
    os.kill(pid, signal.SIGINT)


def terminate(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("send", [to_the_group, interrupt, terminate])
def test_an_interrupted_command_says_what_is_left_before_the_guide_ends(send: Callable[[int], None]) -> None:
    guide = "import sys; from kbackup.cli.guide.processes import run_to_end\n"
    guide += f"sys.exit(run_to_end([sys.executable, '-c', {COMMAND!r}]))"
    running = subprocess.Popen(
        [sys.executable, "-c", guide], env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "begun\n"
    send(running.pid)
    printed, _ = running.communicate(timeout=30)
    assert (printed, running.returncode) == ("told\n", 130)


# Files of answers.


def answers_of(text: str) -> FileAnswers:
    file = io.BytesIO(text.encode())
    file.name = "book.toml"
    answers = open_answers(file)
    assert isinstance(answers, FileAnswers)
    return answers


def test_values_of_toml_are_answers_as_they_would_be_typed() -> None:
    text = 'a = true\nb = false\nc = 3\nd = "x"\ne = 2026-01-31T14:05:00Z\n'
    expected = {"a": "yes", "b": "no", "c": "3", "d": "x", "e": "2026-01-31T14:05:00+00:00"}
    assert answers_of(text).answers == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topic", "book.toml is not TOML"),
        ("topic = ['a']", "book.toml: topic is neither text, a number"),
        ("", "book.toml has no answer to: Which topic?"),
        ('topic = "x"', "book.toml: topic: there is no topic x"),
        ('topic = "orders"\nnmae = "x"', "book.toml: no question of this case is called nmae"),
    ],
)
def test_a_file_that_does_not_answer_is_an_error_that_names_it(root: str, text: str, message: str) -> None:
    def run_through() -> None:
        made = dialog(root, {})
        made.answers = answers_of(text)
        CASES[0].remedy(made)
        made.answers.finish(["run"])

    with pytest.raises(UsageError) as raised:
        run_through()
    assert raised.value.message.startswith(message)


def test_answers_to_questions_that_are_not_always_asked_may_stand_in_each_file(root: str) -> None:
    made = dialog(root, {"topic": "orders", "run": "no", "backup": "yes"})
    CASES[0].remedy(made)
    made.answers.finish(["run", "backup"])


# The command.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--guide",), "--guide asks questions, and stdin is no terminal"),
        (("--answers", os.devnull), "--answers are for --guide alone"),
        (("--guide", "--topic", "orders"), "-t is what the guide asks for"),
        (("--guide", "--set", "target.sasl.password=known"), "target.sasl.password is on the command line"),
    ],
)
def test_options_that_a_guide_can_not_use_are_refused(
    kbackup: Kbackup, root: str, options: tuple[str, ...], message: str
) -> None:
    printed = kbackup("restore", root, *options, code=2)
    assert message in printed.err


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "TERM": "dumb"}


def unusable_target(archive: str, port: int) -> str:
    """A configuration whose target is refused at once: a cluster that does not answer is waited for."""
    return f'''
archive = "{archive}"
[target]
"bootstrap.servers" = "127.0.0.1:{port}"
"security.protocol" = "SSL"
"ssl.ca.location" = "/missing.pem"
'''


def test_a_runbook_without_a_target_ends_before_any_other_question(
    root: str, tmp_path: Path, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.toml").write_text('case = "poison-record"\n')
    printed = kbackup("restore", root, "--guide", "--answers", "book.toml", code=2)
    assert "No cluster to restore into is configured" in printed.out
    assert "has no answer to: Address of the cluster to restore into? (host:port)" in printed.err
    assert 'add a line: target = "…"' in printed.err


def test_a_runbook_runs_through_without_a_terminal(root: str, tmp_path: Path, unused_port: int) -> None:
    """The target can't be used, which is the exit code of the dry run."""
    (tmp_path / "kbackup.toml").write_text(unusable_target(root, unused_port))
    (tmp_path / "book.toml").write_text('case = "poison-record"\nrecord = "orders:0:3"\n')
    done = subprocess.run(
        [sys.executable, "-m", "kbackup", "restore", "--guide", "--answers", "book.toml", "--restore-id", "book"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "newest restore point: 2, taken " in done.stdout
    assert "What the source has since is not known: " in done.stdout
    line = "kbackup restore --topic orders --map orders=orders-restored --skip orders:0:3 --restore-id book"
    assert f"  {line} --dry-run\n" in done.stdout
    assert f"  {line}\n" in done.stdout
    assert "keys can't be used" in done.stderr


def test_at_a_terminal_wrong_answers_are_asked_for_again_and_names_are_completed(
    root: str, tmp_path: Path, unused_port: int
) -> None:
    """The dry run ends with its own exit code: the target can't be used."""
    screen, end = pty.openpty()
    (tmp_path / "kbackup.toml").write_text(unusable_target(root, unused_port))
    os.write(screen, b"7\n6\norders\nord\t0:3\n\n")
    running = subprocess.Popen(
        [sys.executable, "-m", "kbackup", "restore", "--guide"],
        cwd=tmp_path,
        env=environment(),
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    printed = b""
    with suppress(OSError):  # the other end is closed
        while more := os.read(screen, 65536):
            printed += more
    os.close(screen)
    assert running.wait(60) == 2, printed.decode()
    shown = printed.decode()
    assert "7 is no case" in shown
    assert "orders is not the address of a record" in shown
    assert "kbackup restore --topic orders --map orders=orders-restored --skip orders:0:3 --restore-id orders-" in shown
    assert "keys can't be used" in shown
