"""The status of a flow: a document in the archive that the apply half writes at the end of each round.

The document is what `kbackup mirror status`, the web page and `expire` know of a flow; no cluster is asked.
"""

from kbackup.jobs.mirror.status.document import (
    FlowStatus,
    TopicStatus,
    read_status,
    write_status,
)

__all__ = ["FlowStatus", "TopicStatus", "read_status", "write_status"]
