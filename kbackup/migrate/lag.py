"""Find what ZooKeeper lacks of the metadata that KRaft controllers acknowledged, by the logs on their disks.

A dual write acknowledges a change when a majority of the controllers has it, and writes it to ZooKeeper afterwards.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kbackup.errors import CorruptError, KbackupError
from kbackup.jobs.metadata import COMPARED, MetadataSide, check_one_cluster, compare, in_words
from kbackup.metadata.entities import Reading
from kbackup.metadata.sources import Sources
from kbackup.migrate.states import KafkaState, NotRead, ZnodesWitness
from kbackup.migrate.znodes import read_witness
from kbackup.migrate.zookeeper.read import parse
from kbackup.migrate.zookeeper.session import ZooKeeperSession, open_session, read_tree
from kbackup.util.text import join_names

if TYPE_CHECKING:
    from kbackup.migrate.metadata_log.image import MetadataImage

_NO_LOG = NotRead(
    "no metadata log is named",
    "set metadata.log.dir in [source] to a stopped controller's folder, or a copy of it, and name those of other "
    "controllers by --metadata-log DIR",
)
CATCH_UP = (
    "start the controllers again, wait until 'kbackup migrate status --metrics-url URL' says 0 records behind, "
    "then stop them"
)
_PATIENCE = 10.0  # s that a running migration may take for a record
_PAUSE = 1.0  # s between two looks


@dataclass(frozen=True, slots=True)
class Lag:
    """Lack of ZooKeeper against the metadata log, which ends at `end_offset`.

    `records` counts the log's records after the offset in /migration, by type. `differences` names the entities that
    are not the same on both sides."""

    end_offset: int
    records: Mapping[str, int]
    differences: tuple[str, ...]


def is_written_by_kraft(witness: ZnodesWitness) -> bool:
    """Return whether KRaft controllers wrote ZooKeeper last. Else a broker is its controller: ZooKeeper is complete."""
    if witness.controller is not None:
        return witness.controller.is_kraft
    return witness.migration is not None and witness.migration >= 0


def read_lag(zookeeper: ZooKeeperSession, folders: Sequence[str], witness: ZnodesWitness) -> Lag | NotRead:
    """Compare ZooKeeper with the newest of the logs in `folders`, which must belong to a majority of the controllers: a
    minority may lack acknowledged records. `CorruptError` for a damaged log."""
    from kbackup.migrate.metadata_log.image import read_image, reading_of, records_for_zookeeper
    from kbackup.migrate.metadata_log.log import find_log, read_identity

    if not folders:
        return _NO_LOG
    try:
        logs = [find_log(Path(folder)) for folder in folders]
        images = {log: read_image(log) for log in logs}
        identities = [read_identity(log) for log in logs]

        def progress(log: Path) -> tuple[int, int]:
            return images[log].epoch, images[log].offset

        # By the epoch first: a deposed leader's log may be longer, by records that the quorum never committed.
        newest = max(images, key=progress)
        image = images[newest]
        nodes = {identity.get("node.id", "") for identity in identities}
        minority = _minority(image, nodes)
        if minority is not None:
            return minority
        offset = witness.migration
        if offset is not None and image.offset <= offset:
            return NotRead(
                f"the metadata log is older than ZooKeeper: it ends at offset {image.offset}, "
                f"/migration is at {offset}",
                "copy the controllers' folders again, after the controllers are stopped",
            )
        # Before the copy is done, the controllers have acknowledged no change, so ZooKeeper lacks none.
        if image.migration_state == KafkaState.PRE_MIGRATION:
            return Lag(image.offset, {}, ())
        records = records_for_zookeeper(newest, offset + 1) if offset is not None else ()
        in_zookeeper = parse(read_tree(zookeeper))
    except CorruptError:
        raise
    except KbackupError as error:
        return NotRead(error.message, error.hint)
    unread = _unread_parts(in_zookeeper)
    if unread:
        # A part that could not be read would look as if ZooKeeper lacked all of it.
        return NotRead(
            f"not all of ZooKeeper: {join_names(unread, 3, '; ')}",
            "set the brokers' login, zookeeper.sasl.username, in [source]",
        )
    # Of any of the folders: one cluster's logs have one id, and a copy may lack the file that has it.
    cluster_id = ""
    for identity in identities:
        cluster_id = cluster_id or identity.get("cluster.id", "")
    in_log = reading_of(image, cluster_id)
    check_one_cluster([in_zookeeper, in_log])
    counts = Counter(record.record.name for record in records)
    return Lag(image.offset, counts, _differences(in_zookeeper, in_log))


def _differences(in_zookeeper: Reading, in_log: Reading) -> tuple[str, ...]:
    """Return in words each entity that ZooKeeper and the metadata log have differently."""
    zookeeper_side = MetadataSide("ZooKeeper", in_zookeeper)
    log_side = MetadataSide("the metadata log", in_log)
    differences: list[str] = []
    for difference in compare(zookeeper_side, log_side):
        differences.append(in_words(difference, zookeeper_side.name, log_side.name))
    return tuple(differences)


def _unread_parts(reading: Reading) -> list[str]:
    """Return why parts could not be read on which both sides must agree."""
    compared = {part.name for part in COMPARED}
    reasons: list[str] = []
    for entry in reading.not_carried:
        if entry.part in compared and entry.reason in ("denied", "failed"):
            reasons.append(entry.why)
    return reasons


def _minority(image: MetadataImage, nodes: Iterable[str]) -> NotRead | None:
    """Return why the logs of these nodes may lack an acknowledged record, if they may."""
    # A log may have neither a leader's record nor a snapshot that names the voters. Then the registered controllers
    # count.
    voters = sorted(image.voters or image.controllers)
    # By the node ids beside the logs: two copies of one controller's folder count once.
    known = [voter for voter in voters if str(voter) in nodes]
    missing = len(voters) // 2 + 1 - len(known)
    if len(voters) <= 1 or missing <= 0:
        return None
    known_names = ", ".join(map(str, known)) or "unknown"
    voter_names = ", ".join(map(str, voters))
    return NotRead(
        f"the logs of a minority are read: controllers {known_names} of {voter_names}",
        f"name the folders of {missing} more, each with its meta.properties: --metadata-log DIR",
    )


def lag_warnings(sources: Sources) -> list[str]:
    """Return a warning where ZooKeeper lacks records of a running dual write, or where that can't be seen."""
    from kbackup.migrate.metadata_log.image import read_image, records_for_zookeeper
    from kbackup.migrate.metadata_log.log import find_log

    if sources.zookeeper is None:
        return []
    with open_session(sources.zookeeper) as zookeeper:
        witness, _ = read_witness(zookeeper)
        is_dual_write = witness.migration is not None and witness.migration >= 0
        if witness.migration is None or not is_dual_write or not is_written_by_kraft(witness):
            return []
        # The offset in /migration says how far ZooKeeper is; only the log says how far it should be.
        if not sources.metadata_log:
            return ["nothing shows whether ZooKeeper has every record: set metadata.log.dir in [source]"]
        log = find_log(Path(sources.metadata_log))
        # A finished migration leaves /migration as it was, and nobody writes to ZooKeeper any more.
        if read_image(log).migration_state == KafkaState.POST_MIGRATION:
            return []
        records = records_for_zookeeper(log, witness.migration + 1)
        until = time.monotonic() + _PATIENCE
        while records and time.monotonic() < until:
            time.sleep(_PAUSE)
            newer, _ = read_witness(zookeeper)
            # The controllers write their offset after the records; without the znode nothing is known to be written.
            offset = newer.migration if newer.migration is not None else -1
            records = [record for record in records if record.offset > offset]
    if not records:
        return []
    counts = Counter(each.record.name for each in records)
    return [f"ZooKeeper lacks {in_types(counts)} of the metadata log; before a rollback, {CATCH_UP}"]


def in_types(records: Mapping[str, int]) -> str:
    """Return the numbers of records in words, such as '1 TopicRecord, 3 PartitionRecord'."""
    return ", ".join(f"{count} {name}" for name, count in sorted(records.items()))
