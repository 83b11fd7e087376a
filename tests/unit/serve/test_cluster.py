"""What clients are told of the cluster, in every version; and ApiVersions, which tells the truth."""

from __future__ import annotations

import socket
from typing import Any
from uuid import uuid4

import pytest

from kbackup.kafka.control.messages import admin, metadata
from kbackup.serve.protocol import BROKER_ID, Api, ErrorCode
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore
from tests.support.serve_client import ServeClient, served
from tests.unit.serve.made import TOPIC, archive_of, made_records


@pytest.mark.parametrize("version", range(14))
def test_metadata_has_one_broker_that_leads_every_partition(version: int) -> None:
    with served(archive_of(made_records(range(3)), [], [])) as serving, ServeClient(serving) as client:
        asked = metadata.MetadataRequest(topics=[] if version == 0 else None)
        response = client.ask(asked, metadata.MetadataResponse, version)
        (broker,) = response.brokers
        assert (broker.node_id, broker.host, broker.port) == (BROKER_ID, *serving.address)
        (topic,) = response.topics
        assert topic.name == TOPIC
        assert [(p.partition_index, p.leader_id) for p in topic.partitions] == [(n, BROKER_ID) for n in range(3)]
        if version >= 2:
            assert response.cluster_id == "source"


def test_topics_are_found_by_name_and_by_id() -> None:
    kind = metadata.MetadataRequest.MetadataRequestTopic
    with served(archive_of(made_records(range(3)))) as serving, ServeClient(serving) as client:
        topic_id = serving.current.archive.topics[TOPIC].topic_id
        stranger = uuid4()
        topics = [kind(topic_id=topic_id, name=None), kind(topic_id=stranger, name=None)]
        response = client.ask(metadata.MetadataRequest(topics=topics), metadata.MetadataResponse, 12)
        assert [(t.error_code, t.name) for t in response.topics] == [
            (0, TOPIC), (ErrorCode.UNKNOWN_TOPIC_ID, None)
        ]  # fmt: skip
        nobody = metadata.MetadataRequest(topics=[kind(name="nobody")], allow_auto_topic_creation=True)
        (topic,) = client.ask(nobody, metadata.MetadataResponse, 9).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_only_the_chosen_topics_are_there() -> None:
    store = MemoryStore()
    make_archive(store)
    with served(store, point="1", topics=["/c.*/"]) as serving, ServeClient(serving) as client:
        response = client.ask(metadata.MetadataRequest(topics=None), metadata.MetadataResponse, 9)
        assert [topic.name for topic in response.topics] == ["clicks"]


def test_the_cluster_describes_itself() -> None:
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        for version in range(3):
            request = admin.DescribeClusterRequest(include_cluster_authorized_operations=True)
            response = client.ask(request, admin.DescribeClusterResponse, version)
            assert (response.error_code, response.cluster_id, response.controller_id) == (0, "source", BROKER_ID)
            assert [(each.host, each.port) for each in response.brokers] == [serving.address]


def test_partitions_are_described_page_by_page() -> None:
    with served(archive_of(*[[]] * 7)) as serving, ServeClient(serving) as client:
        seen: list[int] = []
        cursor = None
        while True:
            request = admin.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=3, cursor=cursor)
            response = client.ask(request, admin.DescribeTopicPartitionsResponse, 0)
            for topic in response.topics:
                seen += [partition.partition_index for partition in topic.partitions]
            if response.next_cursor is None:
                break
            cursor = admin.DescribeTopicPartitionsRequest.Cursor(
                topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
            )
    assert seen == list(range(7))


@pytest.mark.parametrize("version", range(5))
def test_api_versions_offers_what_is_answered(version: int) -> None:
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        request = metadata.ApiVersionsRequest(client_software_name="test", client_software_version="1")
        response = client.ask(request, metadata.ApiVersionsResponse, version)
        offered = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        answered = {api.key: (api.oldest, api.newest) for api in serving.server.apis}
        assert response.error_code == 0
        assert offered == answered


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest() -> None:
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        client.stream.sendall(bytes.fromhex("0000000f00120063000000010004") + b"test" + b"\0")
        size = int.from_bytes(client.read(4))
        response = metadata.ApiVersionsResponse.decode(client.read(size)[4:], version=0)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(each.api_key, each.max_version) for each in response.api_keys] == [(18, 4)]


@pytest.mark.parametrize("head", ["03e7 0000", "0001 0003", "0003 0063", "ffff 0000"])
def test_what_was_never_offered_ends_the_connection(head: str) -> None:
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        client.stream.sendall(bytes.fromhex("0000000e" + head + "00000001 0004") + b"test")
        assert client.stream.recv(1) == b""


def _every_version(apis: list[Api]) -> list[tuple[Any, int]]:
    return [(api, version) for api in apis for version in range(api.oldest, api.newest + 1)]


def test_every_offered_request_has_an_answer_in_each_version() -> None:
    """With nothing in it: lists are empty. What must not happen is an internal error, or an answer that the library
    can't encode."""
    with served(archive_of(made_records(range(3)))) as serving:
        for api, version in _every_version(serving.server.apis):
            with ServeClient(serving) as client:
                request = api.request()
                if hasattr(request, "acks"):
                    request.acks = 1  # else a producer gets no answer
                client.send(request, version)
                client.receive(api.response, version)
        assert serving.server.counts.failed == 0


def test_a_client_that_vanishes_leaves_nothing() -> None:
    with served(archive_of(made_records(range(3)))) as serving:
        for _ in range(20):
            stream = socket.create_connection(serving.address)
            stream.sendall(b"\0\0\0\x20half a request")
            stream.close()
        with ServeClient(serving) as client:
            assert client.fetch(TOPIC).error_code == 0
