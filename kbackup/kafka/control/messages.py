"""Kafka's own messages: those of kafka-python, and those that it lacks by definitions of our own beside this module.

kafka-python reads each definition by a function that Python 3.11 and 3.12 call deprecated, and 3.13 no longer. Under
`-W error` a program that uses kbackup would end there: so the definitions are loaded here, and nowhere else.
"""

from __future__ import annotations

import warnings

__all__ = [
    "ACLOperation",
    "AddOffsetsToTxnRequest",
    "AddPartitionsToTxnRequest",
    "AlterShareGroupOffsetsRequest",
    "AlterShareGroupOffsetsResponse",
    "ApiVersionsRequest",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "CreatePartitionsRequest",
    "CreateTopicsRequest",
    "DefaultRecordBatch",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteTopicsRequest",
    "DescribeConfigsRequest",
    "DescribeDelegationTokenRequest",
    "DescribeDelegationTokenResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeProducersRequest",
    "DescribeShareGroupOffsetsRequest",
    "DescribeShareGroupOffsetsResponse",
    "EndTxnRequest",
    "FetchRequest",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "IncrementalAlterConfigsRequest",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "MetadataRequest",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "ProduceRequest",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "admin",
    "api_header",
    "consumer",
    "metadata",
    "producer",
    "sasl",
]

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)

    from kafka.protocol import admin, api_header, consumer, metadata, producer, sasl
    from kafka.protocol.admin import (
        ACLOperation,
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        DeleteRecordsRequest,
        DeleteTopicsRequest,
        DescribeConfigsRequest,
        DescribeGroupsRequest,
        DescribeGroupsResponse,
        DescribeProducersRequest,
        IncrementalAlterConfigsRequest,
        ListGroupsRequest,
        ListGroupsResponse,
    )
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.consumer import (
        FetchRequest,
        HeartbeatRequest,
        HeartbeatResponse,
        JoinGroupRequest,
        JoinGroupResponse,
        LeaveGroupRequest,
        LeaveGroupResponse,
        ListOffsetsRequest,
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetDeleteRequest,
        OffsetDeleteResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
        OffsetForLeaderEpochRequest,
        SyncGroupRequest,
        SyncGroupResponse,
    )
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        MetadataRequest,
    )
    from kafka.protocol.producer.produce import ProduceRequest
    from kafka.protocol.producer.transaction import (
        AddOffsetsToTxnRequest,
        AddPartitionsToTxnRequest,
        EndTxnRequest,
        InitProducerIdRequest,
        InitProducerIdResponse,
    )
    from kafka.protocol.sasl import (
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )
    from kafka.record.default_records import DefaultRecordBatch

    class DescribeDelegationTokenRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class DescribeDelegationTokenResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class ConsumerGroupDescribeRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class ConsumerGroupDescribeResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class AlterShareGroupOffsetsRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class AlterShareGroupOffsetsResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass
