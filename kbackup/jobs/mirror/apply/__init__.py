"""Apply archived records to a target, exactly once: `Applier`, round after round."""

from kbackup.jobs.mirror.apply.applied import Applied, DeletedRemote, Lost, PartitionApplied, Recreated
from kbackup.jobs.mirror.apply.applier import Applier
from kbackup.jobs.mirror.apply.positions import read_heads

__all__ = ["Applied", "Applier", "DeletedRemote", "Lost", "PartitionApplied", "Recreated", "read_heads"]
