"""Kafka's own messages: those of kafka-python, and those that it lacks by definitions of our own beside this module.

kafka-python reads each definition by a function that Python 3.11 and 3.12 call deprecated, and 3.13 no longer. Under
`-W error` a program that uses kbackup would end there: so the definitions are loaded here, and nowhere else.
"""

from __future__ import annotations

import warnings

__all__ = [
    "ACLOperation",
    "AlterShareGroupOffsetsRequest",
    "AlterShareGroupOffsetsResponse",
    "ApiVersionsRequest",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "CreatePartitionsRequest",
    "CreateTopicsRequest",
    "DefaultRecordBatch",
    "DeleteGroupsRequest",
    "DeleteTopicsRequest",
    "DescribeConfigsRequest",
    "DescribeDelegationTokenRequest",
    "DescribeDelegationTokenResponse",
    "DescribeGroupsRequest",
    "DescribeProducersRequest",
    "DescribeShareGroupOffsetsRequest",
    "DescribeShareGroupOffsetsResponse",
    "FetchRequest",
    "FindCoordinatorRequest",
    "IncrementalAlterConfigsRequest",
    "ListGroupsRequest",
    "ListOffsetsRequest",
    "MetadataRequest",
    "OffsetCommitRequest",
    "OffsetDeleteRequest",
    "OffsetFetchRequest",
    "OffsetForLeaderEpochRequest",
    "SaslAuthenticateRequest",
    "SaslHandshakeRequest",
    "admin",
]

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)

    from kafka.protocol import admin
    from kafka.protocol.admin import (
        ACLOperation,
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteGroupsRequest,
        DeleteTopicsRequest,
        DescribeConfigsRequest,
        DescribeGroupsRequest,
        DescribeProducersRequest,
        IncrementalAlterConfigsRequest,
        ListGroupsRequest,
    )
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.consumer import (
        FetchRequest,
        ListOffsetsRequest,
        OffsetCommitRequest,
        OffsetDeleteRequest,
        OffsetFetchRequest,
        OffsetForLeaderEpochRequest,
    )
    from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
    from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
    from kafka.record.default_records import DefaultRecordBatch

    class DescribeDelegationTokenRequest(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
        pass

    class DescribeDelegationTokenResponse(ApiMessage, load_json=__package__):  # type: ignore[misc,call-arg]  # kafka-python has no types
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
