"""The bad cases that the guide knows: what each asks, and the commands that mend it. What costs least comes first."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

import click

from kbackup.archive.restores.target_topics import created_again
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import confirmed_undo
from kbackup.cli.guide.answers import GuideAnswers, GuideQuestion, yes_or_no
from kbackup.cli.guide.archived import GuidedArchive
from kbackup.cli.guide.clusters import GuidedTarget, parse_servers
from kbackup.config.times import shown_time
from kbackup.errors import KbackupError, RefusedError, UsageError
from kbackup.jobs.restore.plan import check_names, free_name
from kbackup.kafka.client import Properties
from kbackup.store.base import Store
from kbackup.util.text import kafka_command, plural
from kbackup.util.times import ms_of

Words = tuple[str, ...]


class Step(NamedTuple):
    """A command and what it is for. `undo` is the command that undoes it, if there is one."""

    words: Words
    why: str
    undo: Words = ()


@dataclass(frozen=True)
class GuideRemedy:
    """What mends a case. `dry_run` writes nothing, `run` mends, `verify` comes at the end. `question` asks whether to
    run `run` now.

    `cheaper` are sentences about what costs less, with commands that are not kbackup's. `stop` says whom to stop first,
    and `then` what to do after all. `left_out` are commands for what older restore points have and `run` does not
    restore.

    `group` is the group whose offsets are set as of `moment` (None: the newest restore point of `store`) on `target`,
    if the case is about one. Where records that it should read again are deleted, `otherwise` are the commands that
    `unless` announces."""

    dry_run: Step
    run: Step
    verify: Step
    store: Store
    question: str
    stop: str
    then: str
    cheaper: tuple[str, ...] = ()
    unless: str = ""
    otherwise: tuple[Step, ...] = ()
    left_out: tuple[Step, ...] = ()
    group: str | None = None
    moment: str | None = None
    target: GuidedTarget | None = None


@dataclass
class Dialog:
    """A run of the guide: it asks, checks answers against the archive, and says how it has understood them. `recreated`
    are topics of the source that have the name of an archived one, and are not the same. `before_backup` is when groups
    were captured for the last time before this guide has taken a backup; None if it took none. `target` is the cluster
    to restore into; None as long as nobody has named it. `target_words` are the options by which the commands find a
    target that was asked for."""

    context: CommandContext
    archive: GuidedArchive
    answers: GuideAnswers
    recreated: Container[str] = ()
    before_backup: str | None = None
    given_id: str | None = None
    target: GuidedTarget | None = None
    open_target: Callable[[Properties, str], GuidedTarget] = GuidedTarget
    target_words: Words = ()
    made_id: str = field(default="", init=False)

    def ask(self, question: GuideQuestion) -> str:
        return self.answers.answer(question)

    def ask_topic(self) -> str:
        topic = self.ask(GuideQuestion("topic", "Which topic?", self.archive.topic, words=sorted(self.archive.topics)))
        bounds = self.archive.topics[topic].values()
        offsets = sum(end - start for start, end in bounds)
        self._say(f"{self.archive.where} has {plural(len(bounds), 'partition')} of it, {plural(offsets, 'offset')}")
        return topic

    def ask_group(self) -> str:
        group = self.ask(GuideQuestion("group", "Which group?", self.archive.group, words=sorted(self.archive.groups)))
        partitions = self.archive.groups.get(group)
        if partitions is not None:
            self._say(f"{self.archive.where} has its offsets of {plural(partitions, 'partition')}")
        return group

    def ask_time(self, text: str, check: Callable[[str], str]) -> str:
        """Ask for a time, and show it as it was understood."""
        moment = self.ask(GuideQuestion("time", f"{text} (such as 14:05, 'yesterday 14:05' or '2 hours ago')", check))
        self._say(f"that is {self._shown(moment)}")
        return moment

    def ask_time_of_records(self, text: str) -> str:
        """Ask up to which time to restore records. A time after the newest restore point needs a second answer."""
        moment = self.ask_time(text, self.archive.time_with_records)
        newest = self.archive.newest
        if newest is not None and ms_of(moment) > ms_of(newest.started_at):
            self._confirm_newest(moment, newest.started_at)
        return moment

    def ask_time_of_groups(self, text: str) -> str:
        """Ask as of which time to set offsets. A time after the newest restore point needs a second answer."""
        moment = self.ask_time(text, self.archive.time_with_groups)
        self.check_time_of_groups(moment)
        return moment

    def check_time_of_groups(self, moment: str) -> None:
        """Say which restore point has the offsets of a time, and ask whether to go on if it is the newest one."""
        captured_at = self.archive.groups_captured_at
        if captured_at is None:
            return
        if ms_of(moment) > ms_of(captured_at):
            self._confirm_newest(moment, captured_at)
        else:
            self._say(f"offsets as of restore point {self.archive.point_with_groups(moment)}")

    def _confirm_newest(self, moment: str, taken_at: str) -> None:
        """Ask whether the newest restore point will do for a time after it."""
        number = self.archive.number
        self._say(
            f"the newest restore point before that is {number}, taken at {self._shown(taken_at)}: whatever the source "
            "has got since is not in it"
        )
        text = f"Go on with restore point {number}? (yes, no)"
        if self.ask(GuideQuestion("after_newest", text, yes_or_no, "yes")) == "no":
            raise RefusedError(
                f"no restore point was taken after {moment}",
                "if the source still lives, run 'kbackup backup' and begin again; else give an earlier time",
            )

    def _shown(self, moment: str) -> str:
        return shown_time(ms_of(moment), self.context.reporter.time_zone)

    def ask_name(self, topic: str, *, beside: bool) -> str:
        """Ask under which name to restore a topic. `beside`: another topic has its own name, so a free name is the
        default, and a name that the target has is refused."""

        def legal(answer: str) -> str:
            name = answer.strip()
            check_names({topic: name})
            if beside and name in self.taken:
                free = free_name(topic, self.taken)
                raise UsageError(f"the target has a topic {name} already", f"give another name, such as {free}")
            return name

        default = free_name(topic, self.taken) if beside else topic
        return self.ask(GuideQuestion("name", "Restore it under which name?", legal, default))

    @cached_property
    def taken(self) -> Collection[str]:
        """The topics that the target has; none if it does not answer, which the dry run tells then."""
        if self.target is None:
            return ()
        try:
            return self.target.topic_names
        except KbackupError as error:
            self._say(f"which topics the target has is not known: {error.message}")
            return ()

    def ask_same_offsets(self) -> bool:
        """Ask whether somebody keeps offsets of a topic that is created again, and say what it costs to keep them."""
        answer = self.ask(GuideQuestion("same_offsets", _KEEPS_OFFSETS, yes_or_no, "no"))
        if answer == "yes":
            self._say("so each record gets the offset that it had. It takes longer where logs do not begin at 0, or")
            self._say("offsets have no record: the dry run says how long for each topic, and which it holds back")
        return answer == "yes"

    def ask_servers(self) -> GuidedTarget:
        """Ask for the address of a new cluster, which must answer and be another one than the one that was backed
        up."""

        def check_new(target: GuidedTarget) -> None:
            newest = self.archive.newest
            if newest is not None and newest.cluster_id == target.cluster_id:
                raise UsageError(
                    f"{target.servers} is the cluster that was backed up, {target.cluster_id}: it is not gone",
                    "give the address of the new cluster, or begin again and choose another case",
                )

        return self._ask_cluster("servers", "Address of the new cluster? (host:port)", check_new)

    def ask_target(self) -> None:
        """Ask for the address of the cluster to restore into, which the configuration does not name."""
        self.target = self._ask_cluster("target", "Address of the cluster to restore into? (host:port)")
        self.target_words = ("--bootstrap-server", self.target.servers)

    def _ask_cluster(self, key: str, text: str, check: Callable[[GuidedTarget], None] | None = None) -> GuidedTarget:
        """Ask for the address of a cluster, which must answer and pass the `check`."""
        opened: dict[str, GuidedTarget] = {}

        def reachable(answer: str) -> str:
            servers = parse_servers(answer)
            target = self.open_target(self.context.config.target, servers)
            target.check_reachable()
            if check is not None:
                check(target)
            opened[servers] = target
            return servers

        return opened[self.ask(GuideQuestion(key, text, reachable))]

    def restore_id(self, about: str) -> str:
        """Return the id of the restore, one for all its commands: the given one, or a new one that tells what it is
        about."""
        if self.given_id is not None:
            return self.given_id
        if not self.made_id:
            self.made_id = f"{_word(about)}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        return self.made_id

    def _say(self, text: str) -> None:
        click.echo(f"  {text}")


def _word(text: str) -> str:
    """Return the letters and digits of a name, as the id of a restore can have them."""
    word = re.sub("[^A-Za-z0-9]+", "-", text).strip("-") or "restore"
    return word[:60].rstrip("-")


class Case(NamedTuple):
    """`name` is its name in a file of answers; `remedy` asks for what it needs. `asks_cluster`: the case asks for the
    address of the cluster to restore into, whatever the configuration names."""

    name: str
    title: str
    remedy: Callable[[Dialog], GuideRemedy]
    asks_cluster: bool = False


_KEEPS_OFFSETS = (
    "Does anything keep offsets outside of consumer groups, such as Flink, Spark, Kafka Streams, Connect, a sink's "
    "tables or a database? (yes, no)"
)

_CLIENTS = "producers and consumers"
_START = "start consumers, then producers"
_USE_RESTORED = "let producers and consumers use the restored topic; the other one stays as it is"


def _restore(dialog: Dialog, about: str, words: Sequence[str], then: str, cheaper: tuple[str, ...] = ()) -> GuideRemedy:
    """Return the steps of a restore with these options. Dry run, run and comparison have one id."""
    id_ = ("--restore-id", dialog.restore_id(about))
    return GuideRemedy(
        dry_run=Step(
            ("restore", *words, *id_, "--dry-run"), "shows the plan and all that would stop it; writes nothing"
        ),
        run=Step(("restore", *words, *id_), "restores; if it is interrupted, run the same line again"),
        verify=Step(
            ("verify", "--against", "target", *id_, "--groups"), "compares every record and group with the archive"
        ),
        store=dialog.archive.store,
        question="Restore now?",
        stop=_CLIENTS,
        then=then,
        cheaper=cheaper,
    )


def _mapped(topic: str, name: str) -> Words:
    """Return the options that restore a topic under a name."""
    renamed = ("--map", f"{topic}={name}") if name != topic else ()
    return ("--topic", topic, *renamed)


def _deleted(dialog: Dialog) -> GuideRemedy:
    topic = dialog.ask_topic()
    words: Words = ()
    before = dialog.archive.point_before_recreation(topic)
    is_other = False
    if before is not None:
        restore = dialog.archive.restore_of(topic)
        is_other = not dialog.archive.is_whole(topic, before, restore)
        # The newest restore point has what was created since, and would restore that. A topic that a restore has
        # brought back has gone on from there, so the newest restore point has the most of it.
        default = before if is_other else dialog.archive.number
        text = (
            f"{created_again(topic, restore)}: {dialog.archive.where} has the new one, and {before} is the last with "
            "the one before. Of which restore point?"
        )
        words = ("--restore-point", dialog.ask(GuideQuestion("restore_point", text, _number, str(default))))
    is_taken = is_other or topic in dialog.recreated
    name = dialog.ask_name(topic, beside=is_taken)
    if name != topic:
        return _restore(dialog, topic, (*_mapped(topic, name), *words), _USE_RESTORED)
    then = _START
    if dialog.ask_same_offsets():
        words += ("--same-offsets",)
        then += "; the next backup needs --adopt-topics once, and goes on in the archive where it ended"
    return _restore(dialog, topic, (*_mapped(topic, name), *words), then)


def _number(answer: str) -> str:
    if not answer.strip().isdecimal():
        raise UsageError(f"{answer} is not the number of a restore point", "see 'kbackup list'")
    return answer.strip()


def _bad_records(dialog: Dialog) -> GuideRemedy:
    topic = dialog.ask_topic()
    moment = dialog.ask_time_of_records("The last good moment?")
    name = dialog.ask_name(topic, beside=True)
    return _restore(dialog, topic, (*_mapped(topic, name), "--to-time", moment), _USE_RESTORED)


def _groups(dialog: Dialog, group: str, moment: str | None) -> GuideRemedy:
    """Return the steps that set a group to its archived offsets, without moving a record."""
    words = ["--same-offsets", "--group", group]
    if moment is not None:
        words += ["--to-time", moment]
    id_ = ("--restore-id", dialog.restore_id(group))
    plan = ("groups", "plan", *words)
    undo = ("groups", "undo", *id_, *confirmed_undo(dialog.context.config))
    return GuideRemedy(
        dry_run=Step(plan, "shows the offsets that it would get, beside those of now; writes nothing"),
        run=Step(("groups", "apply", *words, *id_), "sets them", undo),
        verify=Step(plan, "shows the offsets again: NOW and TARGET OFFSET are the same once they are set"),
        store=dialog.archive.store,
        question="Set these offsets now?",
        stop=f"the consumers of {group}",
        then=f"start the consumers of {group}",
        group=group,
        moment=moment,
        target=dialog.target,
    )


def _processed_wrongly(dialog: Dialog) -> GuideRemedy:
    """Set the group back first: no record has to be moved for its consumers to read the same ones again."""
    group = dialog.ask_group()
    moment = dialog.ask_time_of_groups("The last good moment? The group goes back to it")
    remedy = _groups(dialog, group, moment)
    topics = dialog.archive.topics_of(group, ms_of(moment))
    words: list[str] = []
    for topic in topics:
        words += _mapped(topic, free_name(topic, dialog.taken))
    # An id of its own: an undo of the restore's groups must not meet the offsets that were set without it.
    beside = replace(dialog, given_id=f"{dialog.restore_id(group)}-restored")
    restored = _restore(beside, group, (*words, "--no-groups"), _START)
    by_map = ("groups", "apply", "--restore-id", beside.restore_id(group), "--group", group, "--to-time", moment)
    return replace(
        remedy,
        then=f"{remedy.then}: they read again from there, so whatever they write must bear that",
        unless="The archive may have them. To read them again, restore them beside the topic, and let the consumers "
        "read the restored topics",
        otherwise=(
            restored.dry_run,
            restored.run,
            Step(by_map, "sets the group in the restored topics"),
            Step(restored.verify.words[:-1], "compares every record with the archive"),
        ),
    )


def _offsets_lost(dialog: Dialog) -> GuideRemedy:
    group = dialog.ask_group()
    default = "latest"
    if group not in dialog.archive.groups:
        default = dialog.archive.group_seen_at(group) or default
        click.echo(f"  the newest restore point lacks it; it was captured for the last time at {default}")
    elif dialog.before_backup is not None:
        # The backup of just now has captured the offsets that are wrong.
        default = dialog.before_backup
        click.echo(f"  before the backup of just now, it was captured at {default}")

    def point(answer: str) -> str:
        return answer if answer == "latest" else dialog.archive.time_with_groups(answer)

    moment = dialog.ask(GuideQuestion("time", "As of which time? (latest, 14:05, '2 hours ago')", point, default))
    if moment == "latest":
        return _groups(dialog, group, None)
    dialog.check_time_of_groups(moment)
    return _groups(dialog, group, moment)


def _cluster_gone(dialog: Dialog) -> GuideRemedy:
    target = dialog.ask_servers()
    settings = dialog.ask(
        GuideQuestion("settings", "Restore its ACLs, configs and quotas, too? (yes, no)", yes_or_no, "yes")
    )
    words = ["--bootstrap-server", target.servers]
    parts = ["acls", "configs", "quotas"] if settings == "yes" else []
    acls = dialog.archive.acls() if parts else 0
    if acls and not target.has_authorizer:
        text = (
            f"The new cluster has no authorizer and takes none of the {plural(acls, 'ACL')}. Go on without? (yes, no)"
        )
        if dialog.ask(GuideQuestion("without_acls", text, yes_or_no)) == "no":
            raise RefusedError(
                f"the cluster at {target.servers} has no authorizer",
                "set authorizer.class.name on its brokers, and begin again",
            )
        parts.remove("acls")
    if parts:
        words += ["--with", ",".join(parts)]
    then = _START
    same: Words = ()
    if dialog.ask_same_offsets():
        same = ("--same-offsets",)
        then += "; the next backup needs --adopt-cluster once, and goes on in the archive where it ended"
    words += same
    remedy = _restore(dialog, "cluster", words, then)
    # A restore without an edit of kbackup.toml is verified without one.
    address = ("--bootstrap-server", target.servers)
    verify = Step((*remedy.verify.words, *address), remedy.verify.why)
    id_ = dialog.restore_id("cluster")
    left_out = (*_older_topics(dialog, id_, (*address, *same)), *_older_groups(dialog, id_, address))
    return replace(remedy, verify=verify, left_out=left_out)


# What older restore points have, and a restore of the newest one leaves out.


def _older_topics(dialog: Dialog, restore_id: str, options: Words) -> list[Step]:
    """Return the commands that restore, each by a restore of its own with these options, the topics that the newest
    restore point lacks."""
    steps: list[Step] = []
    for topic, point in sorted(dialog.archive.older_topics.items()):
        own_id = f"{restore_id}-{_word(topic)}"
        words = ("restore", "--topic", topic, "--restore-point", str(point), *options, "--restore-id", own_id)
        why = f"topic {topic} is in restore point {point}, not in {dialog.archive.number}; to restore it as well"
        steps.append(Step(words, why))
    return steps


def _older_groups(dialog: Dialog, restore_id: str, address: Words, topics: Collection[str] | None = None) -> list[Step]:
    """Return the commands that set, by the map of a restore, the groups that the newest restore point lacks. Only
    groups with offsets in restored topics can be set: in `topics`, or in any topic of the newest restore point."""
    archive = dialog.archive
    restored = set(topics) if topics is not None else archive.existing_topics
    steps: list[Step] = []
    for group, point in sorted(archive.older_groups.items()):
        if restored.isdisjoint(archive.group_topics(group, point)):
            continue
        of_group = ("--group", group, "--restore-point", str(point))
        words = ("groups", "apply", "--restore-id", restore_id, *of_group, *address)
        why = f"group {group} is in restore point {point}, not in {archive.number}; to set it after the restore"
        steps.append(Step(words, why))
    return steps


def _poison(dialog: Dialog) -> GuideRemedy:
    words = [f"{topic}:" for topic in sorted(dialog.archive.topics)]
    question = GuideQuestion("record", "Which record? (topic:partition:offset)", dialog.archive.record, words=words)
    address = dialog.ask(question)
    topic, partition, offset = address.split(":")
    name = dialog.ask_name(topic, beside=True)
    servers = dialog.target.servers if dialog.target is not None else "HOST:PORT"
    move = ("--reset-offsets", "--to-offset", str(int(offset) + 1), "--topic", f"{topic}:{partition}", "--execute")
    past = kafka_command("kafka-consumer-groups", servers, "--group", "GROUP", *move)
    cheaper = (
        f"To move one group past the record, no restore is needed. Stop its consumers, and run Kafka's tool: {past}",
    )
    then = "let consumers use the restored topic"
    remedy = _restore(dialog, topic, (*_mapped(topic, name), "--skip", address), then, cheaper)
    left_out = _older_groups(dialog, dialog.restore_id(topic), (), [topic])
    return replace(remedy, left_out=tuple(left_out))


CASES = (
    Case("topic-deleted", "a topic was deleted", _deleted),
    Case("bad-records", "a topic has bad records since some time", _bad_records),
    Case("processed-wrongly", "consumers processed records wrongly", _processed_wrongly),
    Case("offsets-lost", "the offsets of a group are lost", _offsets_lost),
    Case("cluster-gone", "the cluster is gone", _cluster_gone, asks_cluster=True),
    Case("poison-record", "one poison record stops consumers", _poison),
)


_SMALL_WORDS = {"a", "an", "are", "at", "in", "is", "it", "my", "of", "one", "our", "some", "the", "was", "were"}


def case_of(answer: str) -> str:
    """Return the name of a case, of its name, its number in the list, or words of its title."""
    text = answer.strip()
    names = [case.name for case in CASES]
    if text.isdecimal() and 1 <= int(text) <= len(names):
        return names[int(text) - 1]
    if text in names:
        return text
    typed = _words_of(text)
    shared = {case.name: len(typed & _words_of(f"{case.name} {case.title}")) for case in CASES}
    most = max(shared.values())
    nearest = [name for name, count in shared.items() if count == most]
    if most == 0 or len(nearest) > 1:
        raise UsageError(f"{answer} is no case", f"give a number from 1 to {len(names)}, or {', '.join(names)}")
    return nearest[0]


def _words_of(text: str) -> set[str]:
    """Return the words of a text that tell one case from another."""
    return set(re.findall("[a-z]+", text.lower())) - _SMALL_WORDS
