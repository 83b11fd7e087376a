"""What restores write down of their topics, without a restore."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kbackup.archive import layout
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.target_topics import TargetTopic, TopicCaptures
from kbackup.store.base import Store


def target_topic(
    topic_id: str = "B", *, source: str = "orders", target: str = "orders", created: bool = True
) -> TargetTopic:
    return TargetTopic(source=source, target=target, id=topic_id, created=created)


def note_topics(
    store: Store,
    restore_id: str,
    topics: Sequence[TargetTopic],
    *,
    cluster_id: str,
    archive_id: str,
    restore_point: int = 7,
    selected: bool = False,
) -> None:
    """Write down the topics of a restore."""
    captures = TopicCaptures(RestoreJournal(store, restore_id))
    captures.write(
        "restore",
        cluster_id,
        archive_id=archive_id,
        restore_point=restore_point,
        selected=selected,
        topics=tuple(topics),
    )


def finish_restore(store: Store, restore_id: str, *excluded: str) -> None:
    """Write of a restore's report what its journal looks at: the topics that it left out."""
    key = layout.restore_key(restore_id, layout.REPORT)
    store.put_new(key, msgspec.json.encode({"excluded": excluded}))
