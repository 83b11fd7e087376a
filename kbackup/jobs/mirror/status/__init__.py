"""The status of a flow: a document in the archive that the apply half writes at the end of each round.

The document is what `kbackup mirror status`, the web page and `expire` know of a flow; no cluster is asked.
"""

from kbackup.jobs.mirror.status.document import (
    FlowStatus,
    TopicStatus,
    has_flows,
    read_flow_status,
    read_status,
    write_status,
)
from kbackup.jobs.mirror.status.lag import FlowLag, flow_lag, round_lag
from kbackup.jobs.mirror.status.overview import FlowOverview, TopicOverview, flows_of
from kbackup.jobs.mirror.status.rounds import (
    after_error,
    after_round,
    first_status,
    planned,
    still_alive,
    with_unreported,
)

__all__ = [
    "FlowLag",
    "FlowOverview",
    "FlowStatus",
    "TopicOverview",
    "TopicStatus",
    "after_error",
    "after_round",
    "first_status",
    "flow_lag",
    "flows_of",
    "has_flows",
    "planned",
    "read_flow_status",
    "read_status",
    "round_lag",
    "still_alive",
    "with_unreported",
    "write_status",
]
