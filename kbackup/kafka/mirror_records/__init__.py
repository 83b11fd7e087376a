"""MirrorMaker 2's internal records: `codec` their bytes, `writer` producing them, `reader` reading a topic of them."""

from kbackup.kafka.mirror_records.codec import Checkpoint, Heartbeat, MirrorRecord, OffsetSync

__all__ = ["Checkpoint", "Heartbeat", "MirrorRecord", "OffsetSync"]
