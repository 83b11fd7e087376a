"""Which right is missing where a cluster denies something, in the words of `kafka-acls`."""

from __future__ import annotations

_PROGRESS = "Write on transactional ids and Read on groups that begin with kbackup-"
_NEEDED = {
    "describing topic": "Describe on the topic",
    "reading configs of topic": "DescribeConfigs on the topic",
    "reading configs of broker": "DescribeConfigs on the cluster",
    "reading configs of group": "DescribeConfigs on the group",
    "asking for offsets": "Describe on the topic",
    "asking where": "Describe on the topic",
    "listing consumer groups": "Describe on the cluster",
    "reading offsets of group": "Describe on the group and on its topics",
    "describing group": "Describe on the group",
    "setting offsets of group": "Read on the group and on its topics",
    "deleting offsets of group": "Delete on the group, and Read on its topics",
    "deleting group": "Delete on the group",
    "deleting topic": "Delete on the topic",
    "creating topic": "Create on the cluster, or on topics of that name",
    "adding partitions to topic": "Alter on the topic",
    "setting configs of topic": "AlterConfigs on the topic",
    "starting transactions": _PROGRESS,
    "committing a transaction": f"{_PROGRESS}, and Read on the topic",
    "delivering": "Write on the topic",
    "reading": "Read on the topic",
    "starting to read": "Read on the topic",
    "a read": "Read on the topic",
    "describing ACLs": "Describe on the cluster",
    "describing SCRAM users": "Describe on the cluster",
    "describing the cluster": "Describe on the cluster",
    "describing client": "DescribeConfigs on the cluster",
    "describing delegation tokens": "Describe on the tokens",
    "changing client quotas": "AlterConfigs on the cluster",
    "creating an ACL": "Alter on the cluster",
    "deleting an ACL": "Alter on the cluster",
    "setting": "AlterConfigs on the cluster",
}
"""By how what was being done begins, the longer before the shorter."""


def needed(doing: str) -> str:
    """Return the rights that an action needs: '' where they are not known."""
    right = next((right for begins, right in _NEEDED.items() if doing.startswith(begins)), "")
    return f" (it takes {right})" if right else ""
