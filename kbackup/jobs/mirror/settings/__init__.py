"""Topics of a flow's target, their partitions, configs and ACLs, as MirrorMaker 2 keeps them.

Each function changes what differs, goes on after a refusal, and reports it: a topic that the target refuses must not
hold the others back.
"""

from kbackup.jobs.mirror.settings.acls import AclsReport, sync_acls
from kbackup.jobs.mirror.settings.configs import ConfigsReport, sync_configs
from kbackup.jobs.mirror.settings.topics import TopicsReport, sync_topics

__all__ = ["AclsReport", "ConfigsReport", "TopicsReport", "sync_acls", "sync_configs", "sync_topics"]
