"""What writes is refused, with an error wherever the answer can have one."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from kbackup.kafka.control.messages import admin, consumer, metadata, producer
from kbackup.serve.protocol import READ_ONLY, Api, ClientRequest, ErrorCode, RequestRefusedError
from kbackup.serve.refused import refused_apis
from tests.support.serve_client import ServeClient, served
from tests.unit.serve.made import TOPIC, archive_of, made_records

_POLICY = ErrorCode.POLICY_VIOLATION


def _produce(acks: int, size: int = 100) -> Any:
    kind = producer.ProduceRequest.TopicProduceData
    data = kind(name=TOPIC, partition_data=[kind.PartitionProduceData(index=p, records=b"x" * size) for p in (0, 4)])
    return producer.ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[data])


@pytest.mark.parametrize("size", [100, 3_000_000])
@pytest.mark.parametrize("version", range(3, 13))
def test_records_are_refused_partition_by_partition(version: int, size: int) -> None:
    with served(archive_of(made_records(range(3)))) as serving, ServeClient(serving) as client:
        (topic,) = client.ask(_produce(-1, size), producer.ProduceResponse, version).responses
        assert topic.name == TOPIC
        assert [(p.index, p.error_code) for p in topic.partition_responses] == [(0, _POLICY), (4, _POLICY)]
        if version >= 8:
            assert {p.error_message for p in topic.partition_responses} == {READ_ONLY}


def test_a_producer_that_waits_for_no_answer_hears_by_the_end_of_its_connection() -> None:
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        client.send(_produce(0), 9)
        assert client.stream.recv(1) == b""


def test_topics_are_refused_by_name() -> None:
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        create = admin.CreateTopicsRequest
        made = create.CreatableTopic(name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        response = client.ask(create(topics=[made], timeout_ms=1), admin.CreateTopicsResponse, 7)
        assert [(t.name, t.error_code, t.error_message) for t in response.topics] == [("new", _POLICY, READ_ONLY)]

        for version, request in (
            (5, admin.DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=1)),
            (6, admin.DeleteTopicsRequest(topics=[admin.DeleteTopicsRequest.DeleteTopicState(name=n, topic_id=uuid4())
                                                  for n in ("a", "b")], timeout_ms=1)),
        ):  # fmt: skip
            response = client.ask(request, admin.DeleteTopicsResponse, version)
            assert [(t.name, t.error_code, t.error_message) for t in response.responses] == [
                ("a", _POLICY, READ_ONLY), ("b", _POLICY, READ_ONLY)
            ]  # fmt: skip


def test_configs_are_refused_by_resource() -> None:
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        kind = admin.IncrementalAlterConfigsRequest
        config = kind.AlterConfigsResource.AlterableConfig(name="retention.ms", config_operation=0, value="1")
        resource = kind.AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[config])
        response = client.ask(kind(resources=[resource]), admin.IncrementalAlterConfigsResponse, 1)
        assert [(r.resource_type, r.resource_name, r.error_code) for r in response.responses] == [(2, TOPIC, _POLICY)]


def test_a_producer_gets_an_id_of_its_own() -> None:
    """Without one, Java's producers ask again and again."""
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        request = producer.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        responses = [client.ask(request, producer.InitProducerIdResponse, version) for version in range(6)]
        assert {(response.error_code, response.producer_epoch) for response in responses} == {(ErrorCode.NONE, 0)}
        ids = {response.producer_id for response in responses}
        assert len(ids) == len(responses)
        assert min(ids) > 0
        assert serving.server.counts.refused == 0


def test_a_producer_of_transactions_gets_no_id() -> None:
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        request = producer.InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=1000)
        response = client.ask(request, producer.InitProducerIdResponse, 4)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_users_are_refused_by_name() -> None:
    kind = admin.AlterUserScramCredentialsRequest
    deleted = kind.ScramCredentialDeletion(name="alice", mechanism=1)
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        request = kind(deletions=[deleted], upsertions=[])
        response = client.ask(request, admin.AlterUserScramCredentialsResponse, 0)
        assert [(each.user, each.error_code) for each in response.results] == [("alice", _POLICY)]


def test_no_list_of_an_answer_is_made_up() -> None:
    """Lists without an error in them, such as the configs of a topic, stay empty."""
    (api,) = [api for api in refused_apis() if api.request is admin.CreateTopicsRequest]
    kind = admin.CreateTopicsRequest.CreatableTopic
    message = admin.CreateTopicsRequest(
        topics=[kind(name="n", configs=[kind.CreatableTopicConfig(name="a", value="b")], assignments=[])]
    )
    from kbackup.serve.refused import refusal

    response = refusal(api, ClientRequest(message, 7, None), RequestRefusedError(44, "no"))  # type: ignore[arg-type]
    assert response.topics[0].configs == []


@pytest.mark.parametrize(
    ("request_kind", "response_kind", "version"),
    [
        (metadata.MetadataRequest, metadata.MetadataResponse, 9),
        (consumer.ListOffsetsRequest, consumer.ListOffsetsResponse, 7),
        (admin.DescribeConfigsRequest, admin.DescribeConfigsResponse, 4),
        (admin.DescribeAclsRequest, admin.DescribeAclsResponse, 3),
    ],
)
def test_a_gate_refuses_what_it_likes(request_kind: Any, response_kind: Any, version: int) -> None:
    class Closed:
        def apis(self) -> list[Api]:
            return []

        def gate(self, request: ClientRequest) -> None:
            raise RequestRefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "log in first")

    with served(archive_of([]), logins=Closed()) as serving, ServeClient(serving) as client:
        client.ask(request_kind(), response_kind, version)
        assert serving.server.counts.refused == 1
