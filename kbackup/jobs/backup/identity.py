"""Check that an archive belongs to the cluster and the topics that a backup would go on with. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kbackup.archive.models import Manifest
from kbackup.errors import ClusterError, MismatchError, RefusedError
from kbackup.jobs.backup.plan import Plan
from kbackup.jobs.capture.live import LiveTopic
from kbackup.kafka.admin.cluster import Cluster
from kbackup.util.text import shorten

_SHOWN = 5


def check_cluster(head: Manifest | None, cluster_id: str, archive: str, adopt: bool) -> None:
    """Raise `MismatchError` where the newest restore point is of another cluster than `cluster_id`.

    An unknown id ('') fits every cluster: an adopted folder and some sources have none.
    """
    if head is None or adopt or not head.cluster_id or not cluster_id or head.cluster_id == cluster_id:
        return
    raise MismatchError(
        f"archive {archive} is of cluster {head.cluster_id}, the source is cluster {cluster_id}",
        "check bootstrap.servers, or back up this cluster to an address of its own; "
        "where it is the same cluster, rebuilt, run one backup with --adopt-cluster",
    )


def check_identity(head: Manifest | None, selected: Sequence[LiveTopic], adopt: bool) -> None:
    """Raise `RefusedError` where the archive has a topic without an id (after an adoption, or a repair without it) and
    the cluster has the topic with an id: records of another topic of that name would follow."""
    if head is None or adopt:
        return
    unknown = {t.name for t in head.topics if not t.id}
    unidentified = [t.name for t in selected if t.id and t.name in unknown]
    if not unidentified:
        return
    raise RefusedError(
        f"nothing in the archive tells whether topic {shorten(unidentified, _SHOWN)} of the source is "
        "the one that it has records of",
        "compare them with 'kbackup verify --against source'; where they are the same, run one backup with "
        "--adopt-topics",
    )


def check_same_topics(cluster: Cluster, plan: Plan) -> None:
    """Raise `ClusterError` where a topic was created anew during the read: its records may be of either topic."""
    now_there = cluster.topics(t.name for t in plan.topics)
    for topic in plan.topics:
        present = now_there.get(topic.name)
        if present is not None and present.id != topic.id:
            raise ClusterError(
                f"topic {topic.name} was deleted and created again while it was backed up",
                "run the backup once more: it archives the topic as a new incarnation; nothing is committed",
            )
