"""Which broker is asked: any, the controller, the leaders of partitions, or the coordinators of groups.

`Router.ask` sends one request. `Router.ask_each` asks about many things at once: it finds the broker of each, sends
them all their requests before it waits for answers, and asks again where `errors.REMEDIES` says that this mends an
error.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaError

from kbackup.errors import KbackupError, UsageError
from kbackup.kafka.client import Connection
from kbackup.kafka.control.connection import BrokerConnection, PendingAnswer, answered_first, connect, refuse_whole
from kbackup.kafka.control.deadline import Deadline
from kbackup.kafka.control.errors import (
    CALL_SECONDS,
    NOT_LET_IN,
    PAUSE_SECONDS,
    SECONDS_PER_THING,
    NoConnectionError,
    RefusedRequestError,
    RequestError,
    UnsupportedSettingError,
    broker_error,
    pauses,
    remedy_for,
)
from kbackup.kafka.control.messages import FindCoordinatorRequest, MetadataRequest
from kbackup.kafka.control.settings import Address, settings_of
from kbackup.kafka.control.tokens import user_tokens
from kbackup.types import TopicPartition
from kbackup.util.text import address_text

K = TypeVar("K", bound=Any)
A = TypeVar("A")

Answers = Iterator[tuple[K, A | KafkaError]]
"""Each thing that was asked about, with its answer, or with the error that it was refused with."""

TOPICS_AT_ONCE = 2000
"""Topics that one request names."""

_COORDINATORS_AT_ONCE = 1000
_FIRST_WITH_MANY_KEYS = 4
"""The first version of FindCoordinator that asks for many coordinators at once (brokers since 3.0)."""

_FIRST_TRY_SECONDS = 3.0
"""How long each of several brokers may take to let us in, before the others are tried. Most brokers do so at once; a
host that is gone may swallow what it is sent."""

GROUP, TRANSACTION = 0, 1
"""`key_type` of FindCoordinator: for groups of whatever kind (share groups have the same coordinator), and for
transactional ids."""


def metadata_request(topics: Iterable[str] | None, *, rights: bool = False) -> Any:
    """Return the request for the metadata of topics, of all of them for None. `rights`: also for what our user may do
    with each."""
    named = None
    if topics is not None:
        named = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    # Whoever asks about a topic that doesn't exist would create it, where brokers have auto.create.topics.enable.
    return MetadataRequest(topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=rights)


@dataclass(frozen=True)
class Question(Generic[K, A]):
    """How brokers are asked about things of one kind.

    `request` makes the request for some of them; the broker is there for its versions. `answers` reads the response:
    things that it leaves out are refused with UNKNOWN_SERVER_ERROR. `at_once` is how many one request asks about, which
    may depend on the broker's versions; or `batches` cuts them. `change`: the request changes something. It is only
    repeated where a broker has certainly not carried it out, and goes out when the request before is answered. `newest`
    is the newest version to use, `oldest` the first version that can express all that is asked: a broker that knows
    only older versions is too old.
    """

    request: Callable[[BrokerConnection, list[K]], Any]
    answers: Callable[[Any, list[K]], Answers[K, A]]
    at_once: int | Callable[[BrokerConnection], int] = TOPICS_AT_ONCE
    batches: Callable[[Iterable[K]], Iterable[list[K]]] | None = None
    change: bool = False
    newest: int | None = None
    oldest: int = 0

    def cut(self, things: Sequence[K], broker: BrokerConnection) -> Iterator[list[K]]:
        """Yield the things that one request to this broker asks about together."""
        if self.batches is not None:
            yield from self.batches(things)
            return
        size = self.at_once if isinstance(self.at_once, int) else self.at_once(broker)
        for at in range(0, len(things), size):
            yield list(things[at : at + size])


class Place(ABC, Generic[K]):
    """Where things are: which broker has to be asked about each."""

    @abstractmethod
    def locate(self, things: Sequence[K], deadline: Deadline) -> Mapping[K, int | KafkaError]:
        """Return the id of the broker for each thing, or why there is none. Raise `RequestError` if nobody can be
        asked."""

    def forget(self, thing: K) -> None:
        """Look the broker up again the next time: the broker that was asked does not answer for this thing."""
        return


ANY_BROKER = -1
"""Stands for the id of a broker that is connected already, or takes us."""


@dataclass
class Lane(Generic[K]):
    """What is asked of one broker: batches that wait, and batches that were sent. `encoded` has the request for the
    first waiting batch and its bytes, once they are made."""

    broker: BrokerConnection
    waiting: deque[list[K]]
    sent: deque[tuple[list[K], PendingAnswer]] = field(default_factory=deque)
    encoded: tuple[Any, bytes] | None = None


class Router:
    """The connections to the brokers of one cluster, made as they are needed. It may be used by several threads: they
    take turns. A process that was forked makes connections of its own.

    Every error is one of `RequestError`, or a `KafkaError` for one thing of many; `connection` puts them into words.
    """

    def __init__(self, connection: Connection) -> None:
        """Raise `UsageError` for a setting of the connection that can't be followed, before anything is sent."""
        self.connection = connection
        try:
            self.settings = settings_of(connection.properties, user_tokens(connection))
        except UnsupportedSettingError as error:
            raise UsageError(
                f"[{connection.role}] can't be used to ask brokers: {error}",
                "leave it out, or use a setting that does the same",
            ) from error
        # It is taken twice: whoever looks for a broker may have to ask for metadata first.
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._cluster: str | None = None
        self._addresses: dict[int, Address] = {}
        self._controller = ANY_BROKER
        self._open: dict[int, BrokerConnection] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        # It is given the connections alone: a method of the router would keep the router alive.
        weakref.finalize(self, _close_all, self._open)

    def close(self) -> None:
        """End all connections. They are made again where something is asked."""
        with self._turn():
            _close_all(self._open)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other thread asks anything."""
        if self._process != os.getpid():
            # A fork: the connections are our parent's, and a thread of it that asked something is not here to let go
            # of the lock. Closing them here leaves them open there.
            self._process = os.getpid()
            self._lock = threading.RLock()
            _close_all(self._open)
        with self._lock:
            yield

    # One request.

    def ask(
        self,
        request: Any,
        *,
        broker: int = ANY_BROKER,
        change: bool = False,
        newest: int | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Any:
        """Send one request and return its response, asking again where that mends an error; by default, any broker is
        asked. Raise `RequestError` if there is no answer in `seconds`, or a refusal of the whole.

        `change`: the request changes something."""

        def locate(deadline: Deadline) -> int:
            return broker

        return self._ask_until_answered(request, locate, change, newest, seconds)

    def ask_controller(
        self, request: Any, *, change: bool = True, newest: int | None = None, seconds: float = CALL_SECONDS
    ) -> Any:
        """Send one request to the controller; by default one that changes something. Of a cluster with a quorum of
        controllers, any broker counts as the controller: it forwards requests."""
        return self._ask_until_answered(request, self._locate_controller, change, newest, seconds)

    def any_broker(self, seconds: float = CALL_SECONDS) -> BrokerConnection:
        """Return a connection to some broker, for its versions and features. Raise `NoConnectionError` if none takes
        us."""
        with self._turn():
            return self._any_broker(Deadline(seconds))

    def broker(self, node: int, seconds: float = CALL_SECONDS) -> BrokerConnection:
        """Return a connection to the broker with this id, for its versions. Raise `RequestError` if it doesn't take
        us."""
        with self._turn():
            return self._broker(node, Deadline(seconds))

    def metadata(self, topics: Collection[str] | None, *, seconds: float = CALL_SECONDS) -> Any:
        """Return Kafka's response to Metadata: brokers, the cluster's id, and `topics`, all of them for None. Refusals
        of topics are in it. Raise `RequestError`."""
        return self._metadata(topics, Deadline(seconds))

    def _metadata(self, topics: Collection[str] | None, deadline: Deadline) -> Any:
        response = self.ask(metadata_request(topics), seconds=deadline.remaining())
        with self._turn():
            self._learn_cluster(response)
        return response

    def _learn_cluster(self, response: Any) -> None:
        if self._cluster is None:
            self._cluster = response.cluster_id
        elif response.cluster_id != self._cluster:
            # An address that we were given leads to another cluster by now. What we know of brokers, leaders and
            # coordinators is about the old one: a change would be made in the wrong cluster.
            _close_all(self._open)
            words = f"the brokers are of cluster {response.cluster_id}, and were of cluster {self._cluster}"
            raise NoConnectionError(words, KafkaError._INCONSISTENT)
        for each in response.brokers:
            self._learn_address(each.node_id, each.host, each.port)
        # Brokers that have left are not to be tried when any broker will do.
        in_cluster = {each.node_id for each in response.brokers}
        for node in self._addresses.keys() - in_cluster:
            self._forget_address(node)
        self._controller = response.controller_id

    def _locate_controller(self, deadline: Deadline) -> int:
        if self._controller == ANY_BROKER:
            self._metadata([], deadline)
        return self._controller

    def _ask_until_answered(
        self, request: Any, locate: Callable[[Deadline], int], change: bool, newest: int | None, seconds: float
    ) -> Any:
        call = Deadline(seconds)
        began = time.monotonic()
        refusal: RequestError | None = None
        pause = pauses()
        while True:
            # A remedy counts the time until a try begins, not until it fails: so a request that took all of its
            # `REQUEST_SECONDS` is asked once more.
            elapsed = time.monotonic() - began
            try:
                with self._turn():
                    broker = self._broker(locate(call), call)
                    return broker.ask(request, newest, call)
            except RequestError as error:
                if refusal is not None and not call.remaining():
                    # Why the broker refused it says more than that the time was over then.
                    raise refusal from None
                refusal = error
                remedy = remedy_for(error.kafka_error(), change=change)
                if remedy is None or elapsed >= remedy.seconds or call.remaining() <= PAUSE_SECONDS:
                    raise
                if remedy.elsewhere:
                    self._controller = ANY_BROKER
            # We pause without the lock: other threads ask meanwhile.
            time.sleep(next(pause))

    # Many things at once.

    def ask_each(
        self,
        things: Iterable[K],
        question: Question[K, A],
        place: Place[K],
        *,
        final: Collection[int] = (),
        again: bool = True,
        seconds: float | None = None,
    ) -> tuple[dict[K, A], dict[K, KafkaError]]:
        """Return the answer about each thing, and the error of each that was refused, or that has no answer in
        `seconds`; many things have more time by default.

        Errors whose codes are `final` are answers: they are not asked about again; without `again`, no error is. An
        error of the connection to a broker is the error of all that was to be asked there."""
        answers: dict[K, A] = {}
        refused: dict[K, KafkaError] = {}
        waiting = list(things)
        if seconds is None:
            seconds = CALL_SECONDS + SECONDS_PER_THING * len(waiting)
        call = Deadline(seconds)
        began = time.monotonic()
        pause = pauses()
        while waiting:
            elapsed = time.monotonic() - began
            for thing, answer in self._ask_once(waiting, question, place, call):
                if isinstance(answer, KafkaError):
                    refused[thing] = answer
                else:
                    refused.pop(thing, None)
                    answers[thing] = answer
            waiting = []
            has_time = call.remaining() > PAUSE_SECONDS
            for thing, error in refused.items():
                if error.code() in final:
                    continue
                remedy = remedy_for(error, change=question.change)
                if remedy is None:
                    continue
                if remedy.elsewhere:
                    # Also where this call ends here: the next one would ask the wrong broker again.
                    place.forget(thing)
                if again and has_time and elapsed < remedy.seconds:
                    waiting.append(thing)
            if waiting:
                time.sleep(next(pause))
        return answers, refused

    def _ask_once(
        self, things: Sequence[K], question: Question[K, A], place: Place[K], call: Deadline
    ) -> list[tuple[K, A | KafkaError]]:
        """Ask about every thing once."""
        found: list[tuple[K, A | KafkaError]] = []
        with self._turn():
            try:
                brokers = place.locate(things, call)
            except RequestError as error:
                return [*_all_refused(things, error)]
            by_broker: dict[int, list[K]] = defaultdict(list)
            for thing in things:
                node = brokers[thing]
                if isinstance(node, KafkaError):
                    found.append((thing, node))
                else:
                    by_broker[node].append(thing)
            lanes: list[Lane[K]] = []
            for node, theirs in by_broker.items():
                try:
                    broker = self._broker(node, call)
                except RequestError as error:
                    found.extend(_all_refused(theirs, error))
                    continue
                batches = question.cut(theirs, broker)
                lanes.append(Lane(broker, deque(batches)))
            for thing, answer in self._run(lanes, question, call):
                found.append((thing, answer))
        return found

    def _run(self, lanes: list[Lane[K]], question: Question[K, A], call: Deadline) -> Answers[K, A]:
        """Keep all brokers at work until everything is answered. Each gets requests as long as its lane has room."""
        going = lanes
        try:
            while going:
                for lane in going:
                    yield from _fill(lane, question, call)
                for lane in self._answered_lanes(going, call):
                    batch, pending = lane.sent.popleft()
                    yield from _answers_to(lane.broker, batch, pending, question)
                going = [lane for lane in going if lane.sent or lane.waiting]
        finally:
            # Answers are left only by an exception. Nobody would take them, and the next request on the connection
            # would find them before its own.
            for lane in lanes:
                if lane.sent:
                    lane.broker.close()

    def _answered_lanes(self, lanes: list[Lane[K]], call: Deadline) -> list[Lane[K]]:
        """Return the lanes that have an answer, or an error. A broker that is slow keeps nobody from the answers of the
        others, which would otherwise seem to be late themselves."""
        asked = [lane for lane in lanes if lane.sent]
        if len(asked) < 2:
            # Nobody else waits: `receive` does, within the same limit.
            return asked
        limit = call.within(self.settings.request_seconds)
        waited_for = [lane.broker for lane in asked]
        brokers = answered_first(waited_for, limit.remaining())
        if not brokers:
            # None of them has answered in the time of a request: `receive` finds each connection failed.
            for lane in asked:
                lane.broker.give_up()
            return asked
        return [lane for lane in asked if lane.broker in brokers]

    # Connections.

    def _broker(self, node: int, deadline: Deadline) -> BrokerConnection:
        """Return a connection to the broker with this id."""
        if node == ANY_BROKER:
            return self._any_broker(deadline)
        found = self._open.get(node)
        if found is not None and found.usable():
            return found
        if node not in self._addresses:
            self._metadata([], deadline)
        if node not in self._addresses:
            raise NoConnectionError(f"broker {node} is not in the cluster")
        try:
            return self._connected(node, self._addresses[node], deadline)
        except NoConnectionError:
            # Perhaps the broker has another address by now: the next try asks for metadata first.
            self._forget_address(node)
            raise

    def _any_broker(self, deadline: Deadline) -> BrokerConnection:
        """Return a connection to a broker that is connected already, or else to the first one that takes us. The
        brokers that are known come before the bootstrap servers."""
        for found in self._open.values():
            if found.usable():
                return found
        candidates = {address: node for node, address in self._addresses.items()}
        for address in self.settings.addresses:
            candidates.setdefault(address, ANY_BROKER)
        failures: dict[Address, NoConnectionError] = {}
        # A broker that is alone has no others that it could keep waiting: it gets the whole time at once.
        if len(candidates) > 1:
            connected = self._try_briefly(candidates, failures, deadline)
            if connected is not None:
                return connected
        slow = [address for address in candidates if address not in failures]
        for number, address in enumerate(slow):
            # Each gets the same part of what is left, so that one which swallows all it is sent leaves time for others.
            share = deadline.remaining() / (len(slow) - number)
            try:
                return self._connected(candidates[address], address, deadline.within(share))
            except NoConnectionError as error:
                failures[address] = error
        raise _most_telling([*failures.values()])

    def _try_briefly(
        self, candidates: Mapping[Address, int], failures: dict[Address, NoConnectionError], deadline: Deadline
    ) -> BrokerConnection | None:
        """Return a connection to the first broker that takes us within `_FIRST_TRY_SECONDS`, None if there is none.
        Note the `failures` of brokers that refused us sooner: they need no second try, with more time."""
        for address, node in candidates.items():
            began = time.monotonic()
            try:
                return self._connected(node, address, deadline.within(_FIRST_TRY_SECONDS))
            except NoConnectionError as error:
                if time.monotonic() - began < _FIRST_TRY_SECONDS:
                    failures[address] = error
        return None

    def _connected(self, node: int, address: Address, deadline: Deadline) -> BrokerConnection:
        """Return a new connection in place of the one that there was to this broker."""
        old = self._open.pop(node, None)
        if old is not None:
            old.close()
        # The user named the bootstrap servers. Every other address comes from brokers, and may be out of date.
        named_by_brokers = address not in self.settings.addresses
        if named_by_brokers and self._cluster is None:
            self._metadata([], deadline)
        connection = connect(self.settings, address, deadline)
        if named_by_brokers:
            try:
                self._check_cluster(connection, deadline)
            except BaseException:
                connection.close()
                raise
        self._open[node] = connection
        return connection

    def _check_cluster(self, broker: BrokerConnection, deadline: Deadline) -> None:
        """Raise `NoConnectionError` for a broker of another cluster: metadata may name a host that is not what it was,
        and a change would be made in the wrong cluster."""
        try:
            response = broker.ask(metadata_request([]), deadline=deadline)
        except RefusedRequestError as refused:
            raise NoConnectionError(f"{address_text(*broker.address)}: {refused.kafka_error().str()}") from refused
        if response.cluster_id != self._cluster:
            words = f"{address_text(*broker.address)} is a broker of another cluster, {response.cluster_id}"
            raise NoConnectionError(words)

    def _forget_address(self, node: int) -> None:
        self._addresses.pop(node, None)
        old = self._open.pop(node, None)
        if old is not None:
            old.close()

    def _learn_address(self, node: int, host: str, port: int) -> None:
        address = (host, port)
        if self._addresses.get(node) == address:
            return
        self._forget_address(node)
        self._addresses[node] = address
        first = self._open.get(ANY_BROKER)
        if first is not None and first.address == address:
            # The bootstrap server turns out to be this broker: one connection is enough.
            self._open[node] = self._open.pop(ANY_BROKER)


def _close_all(connections: dict[int, BrokerConnection]) -> None:
    for each in connections.values():
        each.close()
    connections.clear()


def _most_telling(failures: Sequence[NoConnectionError]) -> NoConnectionError:
    """Return the error that says most: a refused login, before brokers that don't answer."""
    for each in failures:
        if each.code in NOT_LET_IN:
            return each
    together = "; ".join(str(each) for each in failures)
    return NoConnectionError(together, failures[0].code)


def _all_refused(things: Iterable[K], error: RequestError) -> Iterator[tuple[K, KafkaError]]:
    """Yield each of the things with the same error."""
    refusal = error.kafka_error()
    for thing in things:
        yield thing, refusal


def _fill(lane: Lane[K], question: Question[K, A], call: Deadline) -> Answers[K, A]:
    """Send as many requests as the lane has room for; yield the errors of requests that can't be sent."""
    while lane.waiting:
        if question.change and lane.sent:
            # Only one change is under way at a time. If the connection fails, those behind it were never sent, and may
            # be asked for again.
            return
        batch = lane.waiting[0]
        try:
            if lane.encoded is None:
                # Encoded once, even if it has to wait for room: its bytes tell whether there is any.
                request = question.request(lane.broker, batch)
                lane.broker.require(request, question.oldest)
                lane.encoded = request, lane.broker.encode(request, question.newest)
            request, data = lane.encoded
            if not lane.broker.has_room(len(data)):
                return
            lane.encoded = None
            lane.waiting.popleft()
            lane.sent.append((batch, lane.broker.send(request, data, call)))
        except NoConnectionError as error:
            yield from _all_refused(batch, error)
            # The connection is gone for all that was to go over it. A part of this batch may have been sent. Of the
            # others nothing was, so they get an error after which even a change is asked for again.
            unsent = NoConnectionError(str(error))
            for each in lane.waiting:
                yield from _all_refused(each, unsent)
            lane.waiting.clear()
        except RefusedRequestError as error:
            lane.waiting.popleft()
            yield from _all_refused(batch, error)


def _answers_to(
    broker: BrokerConnection, batch: list[K], pending: PendingAnswer, question: Question[K, A]
) -> Answers[K, A]:
    """Yield what the broker says of each thing of a request."""
    missing = dict.fromkeys(batch)
    try:
        response = broker.receive(pending)
        refuse_whole(response)
        for thing, answer in question.answers(response, batch):
            # A broker may name what nobody asked about, or one thing twice: only the first answer counts.
            if thing in missing:
                del missing[thing]
                yield thing, answer
    except RequestError as error:
        yield from _all_refused(missing, error)
    else:
        left_out = RefusedRequestError(KafkaError.UNKNOWN, "the broker's answer leaves it out")
        yield from _all_refused(missing, left_out)


# Where things are.


class AnyBroker(Place[K]):
    """Everything can be asked of any broker."""

    def locate(self, things: Sequence[K], deadline: Deadline) -> Mapping[K, int | KafkaError]:
        return dict.fromkeys(things, ANY_BROKER)


class Controller(Place[K]):
    """Changes go to the controller."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def locate(self, things: Sequence[K], deadline: Deadline) -> Mapping[K, int | KafkaError]:
        return dict.fromkeys(things, self._router._locate_controller(deadline))

    def forget(self, thing: K) -> None:
        self._router._controller = ANY_BROKER


class Brokers(Place[int]):
    """The things are brokers, by id: each is asked about itself."""

    def locate(self, things: Sequence[int], deadline: Deadline) -> Mapping[int, int | KafkaError]:
        return {thing: thing for thing in things}


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, as most requests name partitions."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        numbers[topic].append(number)
    return numbers


class Leaders(Place[TopicPartition]):
    """The things are partitions: their leaders are asked."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def locate(self, things: Sequence[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, int | KafkaError]:
        known = self._router._leaders
        errors: dict[TopicPartition, KafkaError] = {}
        unknown_topics = sorted({tp.topic for tp in things if tp not in known})
        for at in range(0, len(unknown_topics), TOPICS_AT_ONCE):
            errors |= self._look_up(unknown_topics[at : at + TOPICS_AT_ONCE], deadline)
        leaders: dict[TopicPartition, int | KafkaError] = {}
        for tp in things:
            if tp in known:
                leaders[tp] = known[tp]
                continue
            error = errors.get(tp)
            if error is None:
                # A topic that is refused as a whole has no partitions in the answer. A partition that the answer leaves
                # out of a topic is not there.
                error = errors.get(TopicPartition(tp.topic, -1))
            if error is None:
                error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            leaders[tp] = error
        if leaders and all(map(_is_leaderless, leaders.values())):
            # Then it is not about these partitions: the last broker that has replicas of them is going.
            none = KafkaError(KafkaError._NOENT, "no partition has a leader")
            return dict.fromkeys(things, none)
        return leaders

    def _look_up(self, topics: list[str], deadline: Deadline) -> dict[TopicPartition, KafkaError]:
        """Learn the leaders of topics; return the errors of partitions without a leader. The error of a whole topic is
        under its partition -1."""
        errors: dict[TopicPartition, KafkaError] = {}
        for topic in self._router._metadata(topics, deadline).topics:
            if topic.error_code:
                errors[TopicPartition(topic.name, -1)] = KafkaError(topic.error_code)
            for each in topic.partitions:
                tp = TopicPartition(topic.name, each.partition_index)
                if each.leader_id >= 0:
                    self._router._leaders[tp] = each.leader_id
                else:
                    errors[tp] = KafkaError(each.error_code or KafkaError.LEADER_NOT_AVAILABLE)
        return errors

    def forget(self, thing: TopicPartition) -> None:
        self._router._leaders.pop(thing, None)


def _is_leaderless(leader: int | KafkaError) -> bool:
    return isinstance(leader, KafkaError) and leader.code() == KafkaError.LEADER_NOT_AVAILABLE


class Coordinators(Place[str]):
    """The things are groups, or transactional ids: their coordinators are asked."""

    def __init__(self, router: Router, kind: int = GROUP) -> None:
        self._router = router
        self._kind = kind

    def locate(self, things: Sequence[str], deadline: Deadline) -> Mapping[str, int | KafkaError]:
        known = self._router._coordinators
        unknown = [name for name in things if (self._kind, name) not in known]
        coordinators: dict[str, int | KafkaError] = {}
        if unknown:
            coordinators.update(self._look_up(unknown, deadline))
        for name in things:
            if (self._kind, name) in known:
                coordinators[name] = known[self._kind, name]
        return coordinators

    def _look_up(self, names: list[str], deadline: Deadline) -> dict[str, KafkaError]:
        """Learn the coordinators of `names`; return the errors of those whose coordinator is not known."""
        broker = self._router._any_broker(deadline)
        version = broker.version_of(FindCoordinatorRequest())
        at_once = _COORDINATORS_AT_ONCE if version >= _FIRST_WITH_MANY_KEYS else 1
        question = Question[str, None](self._request, self._learn, at_once=at_once)
        batches = question.cut(names, broker)
        lane = Lane(broker, deque(batches))
        errors: dict[str, KafkaError] = {}
        for name, answer in self._router._run([lane], question, deadline):
            if isinstance(answer, KafkaError):
                errors[name] = answer
        return errors

    def _request(self, broker: BrokerConnection, names: list[str]) -> Any:
        if broker.version_of(FindCoordinatorRequest()) >= _FIRST_WITH_MANY_KEYS:
            return FindCoordinatorRequest(key_type=self._kind, coordinator_keys=names)
        return FindCoordinatorRequest(key_type=self._kind, key=names[0])

    def _learn(self, response: Any, names: list[str]) -> Answers[str, None]:
        if not response.coordinators and response.host:
            # Brokers before 3.0 are asked for one coordinator, and answer without a list.
            self._learn_one(names[0], response)
            yield names[0], None
            return
        for each in response.coordinators:
            if each.error_code:
                yield each.key, broker_error(each.error_code, each.error_message)
            else:
                self._learn_one(each.key, each)
                yield each.key, None

    def _learn_one(self, name: str, found: Any) -> None:
        self._router._learn_address(found.node_id, found.host, found.port)
        self._router._coordinators[self._kind, name] = found.node_id

    def forget(self, thing: str) -> None:
        self._router._coordinators.pop((self._kind, thing), None)


def explained(connection: Connection, error: RequestError, doing: str) -> KbackupError:
    """Return kbackup's own error for a request without an answer."""
    return connection.error(error.kafka_error(), doing)


@contextmanager
def explaining(connection: Connection, doing: str) -> Iterator[None]:
    """Turn errors of requests that are raised inside into kbackup's own."""
    try:
        yield
    except RequestError as error:
        raise explained(connection, error, doing) from error
