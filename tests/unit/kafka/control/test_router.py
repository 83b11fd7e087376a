"""Which broker is asked, how often, and how long: with brokers that move, restart, lie, or say nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse, ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from kbackup.kafka.control import router as routing
from kbackup.kafka.control.errors import (
    NOT_A_BROKER,
    LoginError,
    NoConnectionError,
    RefusedRequestError,
    Remedy,
    RequestError,
)
from kbackup.kafka.control.router import AnyBroker, Brokers, Controller, Coordinators, Leaders, Question, Router
from kbackup.types import TopicPartition
from tests.support.fake_broker import FakeCluster, HangUp, fake_cluster
from tests.unit.kafka.control.raw_broker import listener

NOT_CONTROLLER, NOT_LEADER, NOT_COORDINATOR, LOADING, NOT_AVAILABLE = 41, 6, 16, 14, 15


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "PAUSE_SECONDS", 0.01)


@contextmanager
def routed(nodes: int = 1, **properties: str) -> Iterator[tuple[FakeCluster, Router]]:
    with fake_cluster(nodes) as cluster:
        router = cluster.router(**properties)
        yield cluster, router
        router.close()


def groups(request: Any) -> Any:
    return ListGroupsResponse(error_code=0, groups=[])


def sequence(*answers: Any) -> Callable[[Any], Any]:
    """A handler that gives each of these in turn, and the last one for ever: a code is an error for the whole."""
    waiting = [*answers]

    def handler(request: Any) -> Any:
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(answer, int):
            return ListGroupsResponse(error_code=answer, groups=[])
        return answer(request)

    return handler


def hang_up(request: Any) -> Any:
    raise HangUp


# One question: log ends of partitions.


def log_ends(broker: Any, partitions: list[TopicPartition]) -> Any:
    topic, partition = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    names = sorted({tp.topic for tp in partitions})
    topics = []
    for name in names:
        asked = [partition(partition_index=tp.partition, timestamp=-1) for tp in partitions if tp.topic == name]
        topics.append(topic(name=name, partitions=asked))
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)


def ends_of(response: Any, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, int | KafkaError]]:
    for topic in response.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.name, each.partition_index)
            yield tp, KafkaError(each.error_code) if each.error_code else each.offset


LOG_ENDS = Question[TopicPartition, int](log_ends, ends_of)


def ends(request: Any, error: Callable[[int], int] = lambda partition: 0) -> Any:
    """Every log ends at 100 plus its partition."""
    topic, partition = ListOffsetsResponse.ListOffsetsTopicResponse, None
    partition = topic.ListOffsetsPartitionResponse
    topics = []
    for asked in request.topics:
        found = []
        for each in asked.partitions:
            number = each.partition_index
            found.append(partition(partition_index=number, error_code=error(number), offset=100 + number))
        topics.append(topic(name=asked.name, partitions=found))
    return ListOffsetsResponse(topics=topics)


def partitions(count: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


# Retries.


def test_a_controller_that_moves_is_followed() -> None:
    def refuse(request: Any) -> Any:
        cluster.controller = 2
        return ListGroupsResponse(error_code=NOT_CONTROLLER, groups=[])

    with routed(2) as (cluster, router):
        cluster.on(ListGroupsRequest, refuse, node=1)
        cluster.on(ListGroupsRequest, groups, node=2)
        router.ask_controller(ListGroupsRequest())
        assert len(cluster.asked(ListGroupsRequest, node=1)) == 1
        assert len(cluster.asked(ListGroupsRequest, node=2)) == 1


def test_a_controller_that_moves_is_followed_for_each_thing() -> None:
    def created(code: int) -> Callable[[Any], Any]:
        def handler(request: Any) -> Any:
            cluster.controller = 2
            entry = CreateTopicsResponse.CreatableTopicResult
            topics = [entry(name=topic.name, error_code=code, error_message=None) for topic in request.topics]
            return CreateTopicsResponse(topics=topics)

        return handler

    def request(broker: Any, names: list[str]) -> Any:
        entry = CreateTopicsRequest.CreatableTopic
        topics = [
            entry(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for name in names
        ]
        return CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False)

    def answers(response: Any, names: list[str]) -> Iterator[tuple[str, bool | KafkaError]]:
        for topic in response.topics:
            yield topic.name, KafkaError(topic.error_code) if topic.error_code else True

    with routed(2) as (cluster, router):
        cluster.on(CreateTopicsRequest, created(NOT_CONTROLLER), node=1, newest=4)
        cluster.on(CreateTopicsRequest, created(0), node=2, newest=4)
        question = Question[str, bool](request, answers, change=True)
        made, refused = router.ask_each(["a", "b"], question, Controller(router))
        assert (made, refused) == ({"a": True, "b": True}, {})


def test_a_change_is_not_repeated_where_it_may_be_done() -> None:
    with routed() as (cluster, router):
        cluster.on(ListGroupsRequest, hang_up)
        router.any_broker()
        with pytest.raises(RequestError):
            router.ask(ListGroupsRequest(), change=True)
        assert len(cluster.asked(ListGroupsRequest)) == 1


def test_a_reading_request_is_repeated_over_another_connection() -> None:
    with routed() as (cluster, router):
        cluster.on(ListGroupsRequest, sequence(hang_up, hang_up, groups))
        router.ask(ListGroupsRequest())
        assert len(cluster.asked(ListGroupsRequest)) == 3
        assert cluster.brokers[1].accepted == 3


def test_changes_behind_one_that_failed_are_certainly_not_done_and_asked_for_again() -> None:
    """The lane sends one after another: those that were not sent yet are not uncertain."""
    done: list[str] = []

    def handler(request: Any) -> Any:
        (topic,) = [topic.name for topic in request.topics]
        if topic == "a" and not done:
            done.append(topic)
            raise HangUp
        done.append(topic)
        entry = CreateTopicsResponse.CreatableTopicResult
        return CreateTopicsResponse(topics=[entry(name=topic, error_code=0, error_message=None)])

    def request(broker: Any, names: list[str]) -> Any:
        entry = CreateTopicsRequest.CreatableTopic
        topics = [
            entry(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for name in names
        ]
        return CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False)

    def answers(response: Any, names: list[str]) -> Iterator[tuple[str, bool]]:
        for topic in response.topics:
            yield topic.name, True

    with routed() as (cluster, router):
        cluster.on(CreateTopicsRequest, handler, newest=4)
        cluster.on(ListGroupsRequest, groups)
        router.ask(ListGroupsRequest())  # the connection is one that works
        question = Question[str, bool](request, answers, at_once=1, change=True)
        made, refused = router.ask_each(["a", "b", "c"], question, Controller(router))
        assert made == {"b": True, "c": True}
        assert [*refused] == ["a"]
        assert refused["a"].code() == KafkaError._TRANSPORT
        assert done == ["a", "b", "c"]


def test_a_coordinator_that_loads_or_moves_is_asked_again() -> None:
    def first(request: Any) -> Any:
        cluster.coordinators["g"] = 2
        return ListGroupsResponse(error_code=NOT_COORDINATOR, groups=[])

    def answers(response: Any, names: list[str]) -> Iterator[tuple[str, bool]]:
        yield names[0], True

    with routed(2) as (cluster, router):
        cluster.coordinators["g"] = 1
        cluster.on(ListGroupsRequest, first, node=1)
        cluster.on(ListGroupsRequest, sequence(LOADING, LOADING, groups), node=2)
        question = Question[str, bool](lambda broker, names: ListGroupsRequest(), answers, at_once=1)
        found, refused = router.ask_each(["g"], question, Coordinators(router))
        assert (found, refused) == ({"g": True}, {})
        assert len(cluster.asked(ListGroupsRequest, node=2)) == 3


@pytest.mark.parametrize("newest", [3, 99], ids=["one a request", "many a request"])
def test_coordinators_are_found_by_old_and_new_brokers(newest: int) -> None:
    answered: list[int] = []

    def handler(request: Any) -> Any:
        if not answered:
            answered.append(1)
            if request.version < 4:
                return FindCoordinatorResponse(error_code=NOT_AVAILABLE, node_id=-1, host="", port=-1)
            entry = FindCoordinatorResponse.Coordinator
            unknown = [
                entry(key=key, node_id=-1, host="", port=-1, error_code=NOT_AVAILABLE, error_message=None)
                for key in request.coordinator_keys
            ]
            return FindCoordinatorResponse(coordinators=unknown)
        return cluster.find_coordinator(request)

    def answers(response: Any, names: list[str]) -> Iterator[tuple[str, bool]]:
        for name in names:
            yield name, True

    with routed(2) as (cluster, router):
        cluster.coordinators = {"a": 1, "b": 2}
        cluster.on(FindCoordinatorRequest, handler, newest=newest)
        cluster.on(ListGroupsRequest, groups)
        question = Question[str, bool](lambda broker, names: ListGroupsRequest(), answers)
        found, refused = router.ask_each(["a", "b"], question, Coordinators(router))
        assert (found, refused) == ({"a": True, "b": True}, {})
        assert len(cluster.asked(ListGroupsRequest, node=2)) == 1


def test_a_leader_that_moves_is_followed() -> None:
    def refuse(request: Any) -> Any:
        cluster.topics["t"] = [2, 2]
        return ends(request, lambda partition: NOT_LEADER)

    with routed(2) as (cluster, router):
        cluster.topics = {"t": [1, 1]}
        cluster.on(ListOffsetsRequest, refuse, node=1)
        cluster.on(ListOffsetsRequest, ends, node=2)
        found, refused = router.ask_each(partitions(2), LOG_ENDS, Leaders(router))
        assert found == {TopicPartition("t", 0): 100, TopicPartition("t", 1): 101}
        assert refused == {}


def test_final_errors_are_answers() -> None:
    with routed() as (cluster, router):
        cluster.topics = {"t": [1]}
        cluster.on(ListOffsetsRequest, lambda request: ends(request, lambda partition: NOT_LEADER))
        _, refused = router.ask_each(partitions(1), LOG_ENDS, Leaders(router), final={NOT_LEADER})
        assert [error.code() for error in refused.values()] == [NOT_LEADER]
        assert len(cluster.asked(ListOffsetsRequest)) == 1


def test_what_nobody_asked_about_is_left_out() -> None:
    def more(request: Any) -> Any:
        response = ends(request)
        response.topics[0].partitions.append(
            ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
                partition_index=77, error_code=0, offset=7
            )
        )
        response.topics[0].partitions.pop(0)
        return response

    with routed() as (cluster, router):
        cluster.topics = {"t": [1, 1]}
        cluster.on(ListOffsetsRequest, more)
        found, refused = router.ask_each(partitions(2), LOG_ENDS, Leaders(router))
        assert found == {TopicPartition("t", 1): 101}
        assert [*refused] == [TopicPartition("t", 0)]


# Brokers that come and go.


def test_a_broker_that_goes_away_between_two_requests_of_a_pipeline() -> None:
    asked: list[int] = []

    def handler(request: Any) -> Any:
        asked.append(1)
        if len(asked) == 3:
            raise HangUp
        return ends(request)

    with routed() as (cluster, router):
        cluster.topics = {"t": [1] * 8}
        cluster.on(ListOffsetsRequest, handler)
        question = Question[TopicPartition, int](log_ends, ends_of, at_once=1)
        found, refused = router.ask_each(partitions(8), question, Leaders(router))
        assert [found[tp] for tp in partitions(8)] == [100 + number for number in range(8)]
        assert refused == {}
        assert cluster.brokers[1].accepted == 2


def test_a_connection_that_the_broker_ended_while_idle_is_made_anew_even_for_a_change() -> None:
    with routed() as (cluster, router):
        cluster.on(ListGroupsRequest, groups)
        router.ask(ListGroupsRequest())
        cluster.brokers[1].hang_up()
        time.sleep(0.05)
        router.ask(ListGroupsRequest(), change=True)
        assert cluster.brokers[1].accepted == 2


def test_a_broker_with_another_address_is_found_again() -> None:
    with routed(2) as (cluster, router):
        cluster.on(ListGroupsRequest, groups)
        router.ask(ListGroupsRequest(), broker=2)
        cluster.brokers[2].stop()
        cluster.brokers[2].port = 0
        cluster.brokers[2].start()
        router.ask(ListGroupsRequest(), broker=2)
        assert len(cluster.asked(ListGroupsRequest, node=2)) == 2


def test_a_broker_that_has_left_is_not_tried_any_more() -> None:
    with routed(2) as (cluster, router):
        cluster.on(ListGroupsRequest, groups)
        router.ask(ListGroupsRequest(), broker=2)
        cluster.hidden = {2}
        router.metadata([])
        with pytest.raises(NoConnectionError, match="broker 2 is not in the cluster"):
            router.broker(2)


def test_a_bootstrap_server_that_says_nothing_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_FIRST_TRY_SECONDS", 0.2)
    with listener(lambda stream: time.sleep(5)) as silent, fake_cluster() as cluster:
        cluster.on(ListGroupsRequest, groups)
        router = cluster.router(bootstrap_servers=f"127.0.0.1:1,{silent},{cluster.bootstrap}")
        began = time.monotonic()
        router.ask(ListGroupsRequest())
        assert time.monotonic() - began < 2
        router.close()


def test_a_broker_that_is_slow_to_let_us_in_is_given_more_time_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_FIRST_TRY_SECONDS", 0.1)

    def slow(request: Any) -> Any:
        time.sleep(0.3)
        return cluster.versions(1)

    with fake_cluster() as cluster:
        cluster.on(ApiVersionsRequest, slow)
        cluster.on(ListGroupsRequest, groups)
        router = cluster.router(bootstrap_servers=f"127.0.0.1:1,{cluster.bootstrap}")
        router.ask(ListGroupsRequest())
        router.close()


def test_a_refused_login_says_more_than_brokers_that_dont_answer() -> None:
    refused = SaslAuthenticateResponse(error_code=58, error_message="invalid credentials", auth_bytes=b"")
    with fake_cluster() as cluster:
        cluster.on(SaslHandshakeRequest, lambda request: SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]))
        cluster.on(SaslAuthenticateRequest, lambda request: refused)
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        user = {"sasl_username": "a", "sasl_password": "not-to-be-seen"}
        router = cluster.router(bootstrap_servers=f"127.0.0.1:1,{cluster.bootstrap}", **login, **user)
        began = time.monotonic()
        with pytest.raises(LoginError, match="invalid credentials") as raised:
            router.metadata([])
        assert time.monotonic() - began < 2
        assert "not-to-be-seen" not in str(raised.value)


def test_a_login_of_a_short_life_is_renewed_in_time() -> None:
    """As a broker with connections.max.reauth.ms asks for: it ends connections whose login is older."""

    def accept(request: Any) -> Any:
        return SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=200)

    with fake_cluster() as cluster:
        cluster.on(SaslHandshakeRequest, lambda request: SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]))
        cluster.on(SaslAuthenticateRequest, accept)
        cluster.on(ListGroupsRequest, groups)
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        router = cluster.router(**login, sasl_username="a", sasl_password="b")
        for _ in range(10):
            router.ask(ListGroupsRequest(), change=True)
            time.sleep(0.05)
        assert 3 <= len(cluster.asked(SaslAuthenticateRequest)) <= 6
        router.close()


# Clusters that lie.


def metadata_with(cluster: FakeCluster, host: str, port: int, node: int = 9) -> Callable[[Any], Any]:
    """Metadata in which broker `node` is at this address, and leads everything."""

    def handler(request: Any) -> Any:
        response = cluster.metadata(request)
        entry = response.brokers[0]
        response.brokers.append(type(entry)(node_id=node, host=host, port=port, rack=None))
        return response

    return handler


@pytest.mark.parametrize(
    ("host", "port"), [("", 9092), ("127.0.0.1", 0), ("127.0.0.1", -5), ("127.0.0.1", 1 << 30), ("x" * 300, 1)]
)
def test_absurd_addresses_in_metadata_are_errors_of_their_broker_alone(
    host: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(response: Any, nodes: list[int]) -> Iterator[tuple[int, bool]]:
        yield nodes[0], True

    with routed() as (cluster, router):
        cluster.on(MetadataRequest, metadata_with(cluster, host, port))
        cluster.on(ListGroupsRequest, groups)
        question = Question[int, bool](lambda broker, nodes: ListGroupsRequest(), answers)
        found, refused = router.ask_each([1, 9], question, Brokers(), final={KafkaError._RESOLVE})
        assert found == {1: True}
        assert refused[9].code() == KafkaError._RESOLVE


def test_an_advertised_host_of_another_cluster_is_not_asked() -> None:
    """A change would be made in the wrong cluster."""
    with routed() as (cluster, router), fake_cluster() as other:
        other.cluster_id = "other"
        cluster.on(MetadataRequest, metadata_with(cluster, "127.0.0.1", other.brokers[1].port))
        other.on(ListGroupsRequest, groups)
        cluster.on(ListGroupsRequest, groups)
        router.metadata([])
        with pytest.raises(NoConnectionError, match="is a broker of another cluster, other"):
            router.ask(ListGroupsRequest(), broker=9, change=True, seconds=0.2)
        assert other.asked(ListGroupsRequest) == []


def test_a_cluster_that_becomes_another_one_is_an_error_at_once() -> None:
    with routed() as (cluster, router):
        router.metadata([])
        cluster.cluster_id = "new"
        with pytest.raises(NoConnectionError, match="the brokers are of cluster new, and were of cluster fake"):
            router.metadata([])


# Time.


def test_a_call_ends_in_time_whatever_brokers_do() -> None:
    with routed() as (cluster, router):
        cluster.on(ListGroupsRequest, lambda request: None)
        began = time.monotonic()
        with pytest.raises(RequestError):
            router.ask(ListGroupsRequest(), seconds=0.5)
        assert time.monotonic() - began < 1.5


def test_a_broker_that_never_answers_keeps_nobody_from_the_answers_of_the_others() -> None:
    with routed(2, socket_timeout_ms="400") as (cluster, router):
        cluster.topics = {"t": [1, 2] * 5}
        cluster.on(ListOffsetsRequest, lambda request: None, node=1)
        cluster.on(ListOffsetsRequest, ends, node=2)
        question = Question[TopicPartition, int](log_ends, ends_of, at_once=1)
        late = KafkaError._TIMED_OUT
        found, refused = router.ask_each(
            partitions(10), question, Leaders(router), final={late, NOT_A_BROKER, KafkaError._ALL_BROKERS_DOWN}
        )
        assert sorted(tp.partition for tp in found) == [1, 3, 5, 7, 9]
        assert {error.code() for error in refused.values()} == {late}


def test_refusals_are_repeated_as_long_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with routed() as (cluster, router):
        cluster.on(ListGroupsRequest, sequence(LOADING))
        with pytest.raises(RefusedRequestError):
            router.ask(ListGroupsRequest(), seconds=0.3)
        assert len(cluster.asked(ListGroupsRequest)) > 3


def test_a_request_that_takes_long_is_repeated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(error: KafkaError, *, change: bool) -> Remedy:
        return Remedy(0.15, elsewhere=True, refused=False)

    monkeypatch.setattr(routing, "remedy_for", once)  # half of what a request may take, as in the table
    with routed(socket_timeout_ms="300") as (cluster, router):
        cluster.on(ListGroupsRequest, lambda request: None)
        with pytest.raises(RequestError):
            router.ask(ListGroupsRequest(), seconds=5)
        assert len(cluster.asked(ListGroupsRequest)) == 2


# Threads and processes.


def test_threads_share_the_connections_of_a_router() -> None:
    with routed(2) as (cluster, router):
        cluster.topics = {"t": [1, 2] * 10}
        cluster.on(ListOffsetsRequest, ends)
        results: list[int] = []

        def ask() -> None:
            for _ in range(20):
                found, _ = router.ask_each(partitions(20), LOG_ENDS, Leaders(router))
                results.append(len(found))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == [20] * 80


def test_a_forked_process_makes_connections_of_its_own() -> None:
    """Even while another thread of its parent asks something."""
    with routed() as (cluster, router):
        cluster.on(ListGroupsRequest, groups)
        router.ask(ListGroupsRequest())
        release = threading.Event()

        def hold() -> None:
            with router._turn():
                release.wait(10)

        holding = threading.Thread(target=hold)
        holding.start()
        time.sleep(0.05)
        child = os.fork()
        if child == 0:
            try:
                router.ask(ListGroupsRequest(), seconds=5)
                os._exit(0)
            except BaseException:  # noqa: BLE001 (a child ends here in any case)
                os._exit(1)
        release.set()
        _, status = os.waitpid(child, 0)
        holding.join(10)
        assert os.waitstatus_to_exitcode(status) == 0
        router.ask(ListGroupsRequest(), change=True)  # ours is as it was
        assert cluster.brokers[1].accepted == 2


def test_an_exception_in_the_middle_leaves_no_answers_behind() -> None:
    def fail(response: Any, asked: list[TopicPartition]) -> Iterator[tuple[TopicPartition, int]]:
        yield asked[0], 1
        raise ZeroDivisionError

    with routed() as (cluster, router):
        cluster.topics = {"t": [1] * 4}
        cluster.on(ListOffsetsRequest, ends)
        broken = Question[TopicPartition, int](log_ends, fail, at_once=1)
        with pytest.raises(ZeroDivisionError):
            router.ask_each(partitions(4), broken, Leaders(router))
        found, _ = router.ask_each(partitions(4), LOG_ENDS, Leaders(router))
        assert [found[tp] for tp in partitions(4)] == [100, 101, 102, 103]


def test_sockets_are_closed_with_the_router() -> None:
    """An open one would be a ResourceWarning, which is an error in these tests."""
    with fake_cluster() as cluster:
        cluster.on(ListGroupsRequest, groups)
        router = cluster.router()
        router.ask(ListGroupsRequest())
        (connection,) = router._open.values()
        del router
        assert not connection.usable()


def test_versions_of_a_broker_are_there_without_a_request() -> None:
    with routed() as (cluster, router):
        cluster.on(ListGroupsRequest, groups)
        broker = router.any_broker()
        assert ListGroupsRequest.API_KEY in broker.versions
        assert ApiVersionsResponse.API_KEY not in broker.versions


def test_anything_can_be_asked_of_any_broker() -> None:
    def answers(response: Any, names: list[str]) -> Iterator[tuple[str, bool]]:
        for name in names:
            yield name, True

    with routed(3) as (cluster, router):
        cluster.on(ListGroupsRequest, groups)
        question = Question[str, bool](lambda broker, names: ListGroupsRequest(), answers)
        found, _ = router.ask_each(["a", "b"], question, AnyBroker())
        assert found == {"a": True, "b": True}
        assert len(cluster.asked(ListGroupsRequest)) == 1
