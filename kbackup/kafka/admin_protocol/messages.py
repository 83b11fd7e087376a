"""The requests and responses that are used, as classes of kafka-python; delegation tokens by schemas of our own.

Loading them takes a third of a second: import this module where a connection is opened.
"""

from __future__ import annotations

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

__all__ = [
    "RESPONSES",
    "AlterClientQuotasRequest",
    "ApiVersionsRequest",
    "CreateAclsRequest",
    "DeleteAclsRequest",
    "DescribeAclsRequest",
    "DescribeClientQuotasRequest",
    "DescribeClusterRequest",
    "DescribeConfigsRequest",
    "DescribeDelegationTokenRequest",
    "DescribeQuorumRequest",
    "FetchRequest",
    "IncrementalAlterConfigsRequest",
    "ListConfigResourcesRequest",
    "ListPartitionReassignmentsRequest",
    "SaslAuthenticateRequest",
    "SaslHandshakeRequest",
]


class DescribeDelegationTokenRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
    pass


class DescribeDelegationTokenResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # the same
    pass


RESPONSES = {
    AlterClientQuotasRequest: AlterClientQuotasResponse,
    ApiVersionsRequest: ApiVersionsResponse,
    CreateAclsRequest: CreateAclsResponse,
    DeleteAclsRequest: DeleteAclsResponse,
    DescribeAclsRequest: DescribeAclsResponse,
    DescribeClientQuotasRequest: DescribeClientQuotasResponse,
    DescribeClusterRequest: DescribeClusterResponse,
    DescribeConfigsRequest: DescribeConfigsResponse,
    DescribeDelegationTokenRequest: DescribeDelegationTokenResponse,
    DescribeQuorumRequest: DescribeQuorumResponse,
    FetchRequest: FetchResponse,
    IncrementalAlterConfigsRequest: IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest: ListConfigResourcesResponse,
    ListPartitionReassignmentsRequest: ListPartitionReassignmentsResponse,
    SaslAuthenticateRequest: SaslAuthenticateResponse,
    SaslHandshakeRequest: SaslHandshakeResponse,
}


# Kafka's numbers for the fields of ACLs, configs and resources, and its words for them in lower case.


RESOURCES = {2: "topic", 3: "group", 4: "cluster", 5: "transactional_id", 6: "delegation_token", 7: "user"}
PATTERNS = {3: "literal", 4: "prefixed"}
PERMISSIONS = {2: "deny", 3: "allow"}
OPERATIONS = {
    **{2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe"},
    **{9: "cluster_action", 10: "describe_configs", 11: "alter_configs", 12: "idempotent_write"},
    **{13: "create_tokens", 14: "describe_tokens", 15: "two_phase_commit"},
}
ANY = 1

BROKER, CLIENT_METRICS = 4, 16
"""Types of config resources."""

DEFAULT_OF_BROKERS, SET_ON_CLIENT_METRICS = 3, 7
"""Sources of config values."""

SET, DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""


def number(words: dict[int, str], word: str) -> int:
    """The number of a word of one of these tables."""
    return next(number for number, each in words.items() if each == word)
