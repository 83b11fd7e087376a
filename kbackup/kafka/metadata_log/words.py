"""Kafka's words for the numbers that records hold."""

from __future__ import annotations

# types of resources in a ConfigRecord
TOPIC = 2
BROKER = 4
CLIENT_METRICS = 16
GROUP = 32

INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
RESOURCES = {
    2: "topic",
    3: "group",
    4: "cluster",
    5: "transactional_id",
    6: "delegation_token",
    7: "user",
}
PATTERNS = {3: "literal", 4: "prefixed"}
PERMISSIONS = {2: "deny", 3: "allow"}
OPERATIONS = {
    2: "all",
    3: "read",
    4: "write",
    5: "create",
    6: "delete",
    7: "alter",
    8: "describe",
    9: "cluster_action",
    10: "describe_configs",
    11: "alter_configs",
    12: "idempotent_write",
    13: "create_tokens",
    14: "describe_tokens",
    15: "two_phase_commit",
}
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
PRE_MIGRATION = 2
MIGRATION_STATES = {0: "NONE", 1: "MIGRATION", PRE_MIGRATION: "PRE_MIGRATION", 3: "POST_MIGRATION", 4: "ZK"}


def word(words: dict[int, str], number: int) -> str:
    """Return Kafka's word for a number; the number itself for one of a newer Kafka."""
    return words.get(number, str(number))
