"""The JSON files of an archive as frozen models (`formats/schema/` has them as JSON Schema)."""

from __future__ import annotations

from kbackup.archive.models.captures import Group, GroupOffset, Groups, Metadata
from kbackup.archive.models.document import Document, Member, NewerError, dump, load
from kbackup.archive.models.manifest import (
    Capture,
    DocumentRef,
    EpochEnd,
    FileSum,
    LastRecord,
    Loss,
    Manifest,
    PartitionState,
    TopicState,
    Totals,
    document_ref,
    file_sum,
)
from kbackup.archive.models.root import ArchiveInfo, Lease

__all__ = [
    "ArchiveInfo",
    "Capture",
    "Document",
    "DocumentRef",
    "EpochEnd",
    "FileSum",
    "Group",
    "GroupOffset",
    "Groups",
    "LastRecord",
    "Lease",
    "Loss",
    "Manifest",
    "Member",
    "Metadata",
    "NewerError",
    "PartitionState",
    "TopicState",
    "Totals",
    "document_ref",
    "dump",
    "file_sum",
    "load",
]
