"""The topics that restores write to, by the ids that Kafka gave them: restores/<id>/topics-<n>.json.

A topic that is deleted and created again has another id. Here stands whether a restore of this archive has created it.
The name of a topic proves nothing: somebody else may have created a topic of that name. So a topic counts as restored
only by its id in its cluster. Brokers before 2.8 give topics no ids, and their topics never count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Literal, NamedTuple

from kbackup.archive import layout
from kbackup.archive.models import Document, Member
from kbackup.archive.restores.journal import NumberedCaptures, RestoreJournal
from kbackup.errors import CorruptError, DeniedError, MismatchError, NotFoundError
from kbackup.store.base import Store
from kbackup.util.system import in_threads

_UNREADABLE = (CorruptError, DeniedError, MismatchError, NotFoundError)
"""Errors of one document or folder, and not of the store: what else was found still counts."""


class TargetTopic(Member, frozen=True, kw_only=True):
    """A topic that a restore writes to: `id` is Kafka's, `source` the name of the archived topic whose records it gets.
    `created`: the restore has created the topic, which was missing."""

    source: str
    target: str
    id: str
    created: bool


class TargetTopics(Document, frozen=True, kw_only=True):
    """restores/<id>/topics-<number>.json: the topics that exist by now and get records of restore point
    `restore_point`, `selected` ones if times, offsets or an expression choose them. A run of the restore writes it
    before the first record, if it has topics that the earlier ones of these documents lack."""

    format: Literal["kbackup-target-topics"] = "kbackup-target-topics"
    restore_id: str
    number: int
    by: Literal["restore"]
    captured_at: str
    target_cluster_id: str
    archive_id: str
    restore_point: int
    selected: bool
    topics: tuple[TargetTopic, ...]


class TopicCaptures(NumberedCaptures[TargetTopics]):
    kind, name = TargetTopics, layout.TARGET_TOPICS


class TopicRestore(Member, frozen=True, kw_only=True):
    """The restore that a topic comes from. `source` is the archived topic whose records it got. `created`: the restore
    has created the topic; otherwise it filled a topic that was there. `selected`: times, offsets or an expression chose
    the records.

    `outcome` is 'finished', or 'unfinished' if the restore has no report yet, or 'left out' if a later run of the
    restore left the topic out: not all of its records came back."""

    restore_id: str
    restore_point: int
    source: str
    created: bool
    selected: bool
    outcome: Literal["finished", "unfinished", "left out"]


def is_brought_back(restore: TopicRestore | None) -> bool:
    """Return whether a restore has brought back all records of its restore point into a topic."""
    return restore is not None and restore.outcome == "finished" and not restore.selected


class FoundRestores(NamedTuple):
    """Restores by the ids of the topics that they wrote to. `problems` says which documents could not be read: topics
    without an entry may be of their restores."""

    by_topic_id: dict[str, TopicRestore]
    problems: tuple[str, ...] = ()


NO_RESTORES = FoundRestores({})


def find_restores(state: Store, archive_id: str, cluster_id: str, topic_ids: Iterable[str]) -> FoundRestores:
    """Find the restores of this archive that wrote to topics of a cluster; `state` has the documents of restores. An
    unknown cluster or topic ('') has none."""
    wanted = set(topic_ids) - {""}
    if not wanted or not cluster_id:
        return NO_RESTORES
    try:
        restore_ids = [name for name in state.list_dirs(layout.RESTORES) if layout.is_restore_id(name)]
    except _UNREADABLE as error:
        return FoundRestores({}, (error.message,))
    problems: list[str] = []

    def documents_of(restore_id: str) -> list[TargetTopics]:
        try:
            return TopicCaptures(RestoreJournal(state, restore_id)).every()
        except _UNREADABLE as error:
            problems.append(error.message)
            return []

    documents: list[TargetTopics] = []
    for of_restore in in_threads(documents_of, restore_ids):
        for document in of_restore:
            if (document.target_cluster_id, document.archive_id) == (cluster_id, archive_id):
                documents.append(document)
    chosen: dict[str, tuple[TargetTopics, TargetTopic]] = {}
    for document, topic in _in_order(documents):
        if topic.id in wanted:
            chosen[topic.id] = document, topic
    by_topic_id: dict[str, TopicRestore] = {}
    for topic_id, (document, topic) in chosen.items():
        try:
            by_topic_id[topic_id] = _restore_of(state, document, topic)
        except _UNREADABLE as error:
            problems.append(error.message)
    return FoundRestores(by_topic_id, tuple(sorted(problems)))


def _in_order(documents: Iterable[TargetTopics]) -> Iterator[tuple[TargetTopics, TargetTopic]]:
    """Yield the topics of all documents: topics that were filled before those that were created, and each in order of
    time. The last one of an id is the restore that the topic comes from."""
    pairs: list[tuple[TargetTopics, TargetTopic]] = []
    for document in documents:
        pairs += [(document, topic) for topic in document.topics]

    def place(pair: tuple[TargetTopics, TargetTopic]) -> tuple[bool, str]:
        document, topic = pair
        return topic.created, document.captured_at

    yield from sorted(pairs, key=place)


def _restore_of(state: Store, document: TargetTopics, topic: TargetTopic) -> TopicRestore:
    left_out = RestoreJournal(state, document.restore_id).left_out()
    outcome: Literal["finished", "unfinished", "left out"] = "finished"
    if left_out is None:
        outcome = "unfinished"
    elif topic.source in left_out:
        outcome = "left out"
    return TopicRestore(
        restore_id=document.restore_id,
        restore_point=document.restore_point,
        source=topic.source,
        created=topic.created,
        selected=document.selected,
        outcome=outcome,
    )


def created_again(topic: str, restore: TopicRestore | None) -> str:
    """Return the words for a topic that has another id than the archived topic of its name: who created it, as far as
    that is known."""
    if restore is None:
        return f"topic {topic} was deleted and created again"
    by = f"restore {restore.restore_id} of restore point {restore.restore_point}"
    if restore.created:
        words = f"topic {topic} was created again by {by}"
    else:
        words = f"topic {topic} was created again, and filled by {by}"
    records = "selected records" if restore.selected else "the records"
    if restore.source != topic:
        words += f" with {records} of topic {restore.source}"
    elif restore.selected:
        words += " with selected records"
    if restore.outcome == "unfinished":
        words += ", which is not finished"
    elif restore.outcome == "left out":
        words += ", which left the topic out in the end"
    return words


def topics_to_note(earlier: Iterable[TargetTopics], present: Collection[TargetTopic]) -> tuple[TargetTopic, ...]:
    """Return the topics that a run of a restore has to write down beside what `earlier` runs have.

    A topic under another id than an earlier run noted is another topic, unless this run has created it: then somebody
    else has, and the restore has not filled it.
    """
    noted: set[str] = set()
    for document in earlier:
        noted.update(topic.target for topic in document.topics)
    to_note: list[TargetTopic] = []
    for topic in present:
        # Brokers before 2.8 give no ids: without one, nothing could be said of the topic later.
        if topic.id and (topic.created or topic.target not in noted):
            to_note.append(topic)
    return tuple(to_note)
