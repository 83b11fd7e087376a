"""Apply archived records to a target, exactly once: `Applier` for round after round, `apply_round` for a single one."""

from kbackup.jobs.mirror.apply.applied import Applied, Lost, PartitionApplied, Recreated
from kbackup.jobs.mirror.apply.applier import Applier, apply_round
from kbackup.jobs.mirror.apply.positions import read_heads

__all__ = ["Applied", "Applier", "Lost", "PartitionApplied", "Recreated", "apply_round", "read_heads"]
