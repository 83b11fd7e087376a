"""The requests and responses that are used, as classes of kafka-python; delegation tokens by schemas of our own.

Loading them takes a third of a second: import this module where a connection is opened."""

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
