"""A restore point that is made of segments and group files alone: by an adoption, or where manifests are lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from kbackup.archive import layout
from kbackup.archive.catalog.run import WritingRun
from kbackup.archive.models import Group, GroupOffset, Groups, Loss, Manifest, Metadata, TopicState
from kbackup.archive.new_point import Draft, put_capture
from kbackup.archive.repair.topic_states import Captured, topic_at, topic_states
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.offsets import decode_group_offsets
from kbackup.metadata.entities import NotCarried, TopicMetadata
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import shorten
from kbackup.util.times import now

_SHOWN = 5


def groups_of_files(
    store: Store, keys: Iterable[str], topics: Iterable[Incarnation], root: str = layout.TOPICS
) -> Groups:
    """The group offsets that the group files among `keys` tell of `topics`; damaged files are skipped."""
    folders = {layout.topic_dir(*topic, root): topic[0] for topic in topics}
    offsets: dict[str, list[GroupOffset]] = {}
    for key in sorted(keys):
        folder, _, name = key.rpartition("/")
        partition = layout.parse_group_offsets(name)
        topic = folders.get(f"{folder}/")
        if partition is None or topic is None:
            continue
        with suppress(CorruptError, NotFoundError):
            for group, offset in decode_group_offsets(store.get(key), key).items():
                offsets.setdefault(group, []).append(
                    GroupOffset(topic=topic, partition=partition, offset=offset)
                )
    return Groups(
        captured_at=now(),
        groups=tuple(
            Group(group=name, type="", state="", offsets=tuple(o)) for name, o in sorted(offsets.items())
        ),
    )


def draft_behind(
    writing: WritingRun,
    head: Manifest | None,
    segments: Sequence[Segment],
    ids: Mapping[Incarnation, str],
    keys: Iterable[str],
    captured: Captured,
    number: int,
    *,
    last: bool,
) -> Draft:
    """Restore point `number` of `segments` behind `head`: their topics, with the partitions and configs that they had
    when they were `captured`. The `last` one has the other topics of `head` as well, as they are there."""
    by_partition: dict[IncarnationPartition, list[Segment]] = {}
    for s in segments:
        by_partition.setdefault(s.incarnation_partition, []).append(s)
    old = {(t.name, t.incarnation): t for t in (head.topics if head is not None else ())}
    new = {place[:2] for place in by_partition}
    before = {(*key, p.partition): p for key in new & old.keys() for p in old[key].partitions}
    groups = groups_of_files(writing.store, keys, new)
    known = {key: topic_at(captured, key[0], ids.get(key, ""), number) for key in sorted(new)}
    counted = {
        (*key, p) for key, topic in known.items() if topic is not None for p in range(topic.partitions)
    }
    made = topic_states(number, {*by_partition, *before, *counted}, by_partition, ids, before, groups)
    names = {topic.name for topic in made}
    carried = [t for t in old.values() if last and t.name not in names]
    names |= {topic.name for topic in carried}
    empty = (
        _empty_topics(captured, head.number if head is not None else 0, names, ids, number) if last else []
    )
    made = (*made, *(topic for topic, _ in empty))
    needed = {t.captured for t in carried}
    captures = [c for c in (head.captures if head is not None else ()) if c.number in needed]
    settings = [topic for topic in (*known.values(), *(t for _, t in empty)) if topic is not None]
    draft = draft_of(
        writing, "repair", made, segments, groups, cluster_id=head.cluster_id if head is not None else "",
        number=number, settings=settings,
    )  # fmt: skip
    return replace(
        draft,
        topics=sorted([*made, *carried], key=lambda t: t.name),
        captures=[*captures, *draft.captures],
        isolation_level=head.isolation_level if head is not None else "read_committed",
    )


def _empty_topics(
    captured: Captured, head: int, names: Collection[str], ids: Mapping[Incarnation, str], number: int
) -> list[tuple[TopicState, TopicMetadata]]:
    """Return the topics of the newest capture behind restore point `head`, apart from `names`: no segment was found."""
    newest = max((at for entries in captured.values() for at, _ in entries), default=0)
    topics: list[tuple[TopicState, TopicMetadata]] = []
    for name, entries in sorted(captured.items()):
        at, topic = entries[-1]
        if at != newest or newest <= head or name in names:
            continue
        given = {incarnation: id_ for (other, incarnation), id_ in ids.items() if other == name}
        same = [incarnation for incarnation, id_ in given.items() if id_ == topic.id]
        key = (name, same[0] if same else max(given, default=0) + 1)
        places = [(*key, p) for p in range(topic.partitions)]
        no_groups = Groups(captured_at="", groups=())
        topics += [(t, topic) for t in topic_states(number, places, {}, {key: topic.id}, {}, no_groups)]
    return topics


def draft_of(
    writing: WritingRun,
    origin: str,
    topics: Sequence[TopicState],
    segments: Sequence[Segment],
    groups: Groups,
    losses: Sequence[Loss] = (),
    warnings: Sequence[str] = (),
    cluster_id: str = "",
    number: int = 0,
    settings: Sequence[TopicMetadata] = (),
) -> Draft:
    """Restore point `number` (default: the next) of `writing`, with documents of its own; `settings` are the configs
    that are known."""
    number, at = number or writing.next_point, now()
    unknown = NotCarried(part=None, what="cluster", reason="failed", why="nothing tells of it")
    metadata = Metadata(
        captured_at=at, cluster_id=cluster_id, brokers=0, topics=tuple(settings), not_carried=(unknown,)
    )
    return Draft(
        number=number,
        started_at=at,
        committed_at=at,
        origin="folder" if origin == "folder" else "repair",
        cluster_id=cluster_id,
        topics=topics,
        segments=segments,
        losses=losses,
        warnings=warnings,
        not_known=not_known(topics, {t.name for t in settings}),
        captures=[put_capture(writing, number, at, groups, metadata)],
        groups=len(groups.groups),
        captured_topics=len(topics),
        captured_partitions=sum(len(t.partitions) for t in topics),
    )


def not_known(topics: Sequence[TopicState], known: Collection[str] = ()) -> list[str]:
    """Return in words what a restore point of files alone can't tell, in words; configs of the topics `known` are
    known."""
    if not topics:
        return []
    names = [t.name for t in topics if t.name not in known]
    configs = f"configs and replication factor of {shorten(names, _SHOWN)}; " if names else ""
    uncounted = [partitions_not_known(names)] if names else []
    unknown = [
        *uncounted,
        f"{configs}group positions are those of the group files",
        "ACLs, users and settings of the cluster",
    ]
    nameless = [t.name for t in topics if not t.id]
    return [*unknown, *([f"Kafka's ids of {shorten(nameless, _SHOWN)}"] if nameless else [])]


def partitions_not_known(names: Collection[str]) -> str:
    return f"partitions behind the last one with records of {shorten(sorted(names), _SHOWN)}"
