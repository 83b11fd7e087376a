"""The committed offsets of groups: those of the archive, and those that clients have committed since, in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.protocol import ErrorCode, ServedContents
from kbackup.types import CommittedOffset, TopicPartition

log = logging.getLogger(__name__)

LARGEST_METADATA = 4096
"""The bound of the text beside an offset, in characters, as brokers have it."""

MOST_COMMITTED = 1_000_000
"""The bound of offsets in memory, of all groups."""

MOST_ANNOUNCED = 1000
"""For how many groups it is logged what becomes of their commits."""

CommitResults = dict[TopicPartition, ErrorCode]


class GroupOffsets:
    """What groups have committed. Nothing of it is ever written to the archive."""

    def __init__(self, contents: ServedContents, *, refuses_commits: bool = False) -> None:
        self._contents = contents
        self._refuses_commits = refuses_commits
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._count = 0
        self._announced: set[str] = set()

    def groups(self) -> set[str]:
        """Return the names of the groups that have offsets."""
        return set(self._contents.groups()) | set(self._committed)

    def of_group(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets of a group: it begins at those of the archive."""
        offsets = {each.tp: each for each in self._contents.groups().get(group, ())}
        offsets.update(self._committed.get(group, {}))
        return offsets

    def commit(self, group: str, offsets: Iterable[CommittedOffset]) -> CommitResults:
        """Keep the offsets that a client commits. Return for each partition whether it was kept, or why not."""
        if self._refuses_commits:
            self._announce(group, "commits of group %s are refused: --commits refuse")
            # Java's consumer logs one error for a commit that ends so. For an error of topics it logs one for each
            # partition, and other errors it calls unexpected.
            raise GroupRequestError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        results: CommitResults = {}
        topics = self._contents.topics()
        kept = self._committed.setdefault(group, {})
        for each in offsets:
            topic = topics.get(each.tp.topic)
            if topic is None or not 0 <= each.tp.partition < topic.partitions:
                results[each.tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(each.metadata) > LARGEST_METADATA:
                results[each.tp] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif each.tp not in kept and self._count >= MOST_COMMITTED:
                results[each.tp] = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            else:
                self._count += each.tp not in kept
                kept[each.tp] = each
                results[each.tp] = ErrorCode.NONE
        if kept:
            self._announce(group, "commits of group %s are kept in memory until the end, not in the archive")
        else:
            del self._committed[group]
        return results

    def _announce(self, group: str, message: str) -> None:
        """Log once per group what becomes of its commits."""
        if group in self._announced or len(self._announced) >= MOST_ANNOUNCED:
            return
        self._announced.add(group)
        log.info(message, group)
