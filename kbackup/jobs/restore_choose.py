"""What a restore is about: the content of the archive that is asked for, and the plan for it."""

from __future__ import annotations

import uuid

from kbackup.archive.content import Content, content_of
from kbackup.archive.java import is_java_archive, java_content, java_topics
from kbackup.archive.models import Manifest, TopicState, now
from kbackup.archive.reader import open_archive
from kbackup.config.models import Restore
from kbackup.errors import NoArchiveError, RefusedError, UsageError
from kbackup.jobs.restore_plan import (
    RestorePlan,
    check_names,
    make_units,
    plan_groups,
    plan_topic,
    target_name,
)
from kbackup.jobs.select import Selection
from kbackup.store.base import Store


def choose_content(options: Restore, store: Store, earlier: RestorePlan | None) -> Content:
    """What the archive (or the Java tool's folder) has of the topics asked for, or of those of `earlier`."""
    selection = Selection.of(options.topics, options.exclude_topics)
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if not is_java_archive(store):
            raise
        names = selection.topics(java_topics(store))
        return java_content(store, [t.source for t in earlier.topics] if earlier else names)
    point = archive.restore_point(earlier.restore_point if earlier else options.backup)
    if earlier is not None:
        wanted = {t.source for t in earlier.topics}
        return content_of(archive, point, [t for t in point.topics if t.name in wanted])
    return content_of(archive, point, _chosen(point, selection))


def _chosen(point: Manifest, selection: Selection) -> list[TopicState]:
    """Topics of a restore point; one that was deleted at the source by then only where it is asked for by
    name."""
    known = {t.name for t in point.topics}
    for name in sorted(selection.names - known):
        raise UsageError(f"there is no topic {name} in restore point {point.seq}", "see 'kbackup info'")
    there = [t.name for t in point.topics if t.state != "deleted" or t.name in selection.names]
    names = set(selection.topics(there))
    return [t for t in point.topics if t.name in names]


def choose_plan(options: Restore, content: Content, cluster_id: str) -> RestorePlan:
    """`UsageError` or `RefusedError` for names that match nothing, are not legal, or collide."""
    names = {t.name: target_name(t.name, options.map, options.map_regex) for t in content.topics}
    if not names:
        raise UsageError("no topic of the archive matches", "see 'kbackup info' for what it holds")
    for unknown in sorted(set(options.map) - set(names)):
        raise UsageError(
            f"--map names topic {unknown}, which is not restored", "see 'kbackup info' for what there is"
        )
    check_names(names)
    selection = None if options.no_groups else Selection.of(options.groups, options.exclude_groups)
    return RestorePlan(
        restore_id=options.restore_id or f"{now()[:10]}-{uuid.uuid4().hex[:8]}",
        archive_id=content.archive_id,
        restore_point=content.restore_point,
        target_cluster_id=cluster_id,
        created_at=now(),
        transactions=options.transactions,
        transaction_bytes=options.transaction_bytes,
        into_existing=options.into_existing,
        topics=tuple(
            plan_topic(t, names[t.name], options.topic_config, options.replication_factor)
            for t in content.topics
        ),
        units=make_units(content, names),
        groups=plan_groups(content, names, selection, options.map_group),
    )


def check_same_archive(plan: RestorePlan, content: Content) -> None:
    """A restore goes on from where it began."""
    if plan.archive_id != content.archive_id:
        raise RefusedError(
            f"restore {plan.restore_id} was begun from another archive", "use another --restore-id"
        )


def check_same_target(plan: RestorePlan, cluster_id: str) -> None:
    """It goes on, and is finished, only where it was begun into."""
    if plan.target_cluster_id != cluster_id:
        raise RefusedError(
            f"restore {plan.restore_id} was begun into cluster {plan.target_cluster_id}, this is {cluster_id}",
            "use another --restore-id",
        )
