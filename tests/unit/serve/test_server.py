"""The server against clients that are slow, hostile, or gone: the others go on."""

from __future__ import annotations

import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kbackup.kafka.control.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    admin,
    consumer,
    metadata,
    producer,
)
from kbackup.serve import frames
from kbackup.serve import server as servers
from kbackup.serve.login import Logins
from kbackup.serve.protocol import LONGEST_RUN, ErrorCode, HostileClientError, RequestHeader, read_header
from kbackup.serve.service import Serving
from kbackup.serve.users import UsersFile, write_user
from tests.support.memory_store import MemoryStore
from tests.support.serve_client import ServeClient, encoded_request, fetch_request, records_of, served
from tests.unit.serve.made import TOPIC, archive_of, made_records

RECORDS = made_records(range(200), size=400)
MUTATIONS = 2000


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return archive_of(RECORDS, RECORDS[:3])


@pytest.fixture
def serving(store: MemoryStore) -> Iterator[Serving]:
    with served(store) as found:
        yield found


def assert_serves(serving: Serving) -> None:
    """Another client reads."""
    with ServeClient(serving) as client:
        assert records_of(client.fetch(TOPIC).records)[0] == RECORDS[0]


def assert_closed(stream: socket.socket) -> None:
    """The server closes the connection, with or without a farewell."""
    try:
        while stream.recv(1 << 16):
            pass
    except ConnectionResetError:
        return


def test_requests_of_a_connection_are_answered_in_order(serving: Serving) -> None:
    with ServeClient(serving) as client:
        # The first one waits at the end of the log; those behind it wait for it.
        wait = encoded_request(fetch_request(TOPIC, 0, 200, max_wait_ms=400), 12, 1)
        ask = [encoded_request(metadata.MetadataRequest(topics=None), 9, number) for number in (2, 3)]
        client.stream.sendall(wait + ask[0] + ask[1])
        answered: list[int] = []
        for _ in range(3):
            data = client.read(int.from_bytes(client.read(4)))
            answered.append(int.from_bytes(data[:4]))
        assert answered == [1, 2, 3]


def test_a_client_that_waits_stops_no_other(serving: Serving) -> None:
    with ServeClient(serving) as waiting:
        waiting.send(fetch_request(TOPIC, 0, 200, max_wait_ms=20_000), 12)
        began = time.monotonic()
        assert_serves(serving)
        assert time.monotonic() - began < 5


def test_what_is_answered_for_a_client_that_goes_is_given_up(serving: Serving) -> None:
    with ServeClient(serving) as waiting:
        waiting.send(fetch_request(TOPIC, 0, 200, max_wait_ms=60_000), 12)
        time.sleep(0.1)
        assert serving.server.clients == 1
    until = time.monotonic() + 5
    while serving.server.clients:
        assert time.monotonic() < until, "the connection is still open"
        time.sleep(0.02)


@pytest.mark.parametrize("size", [0, 7, -1, -(1 << 31), 0x7FFFFFFF, 0x16030100, 0x47455420])
def test_a_size_that_no_request_has_ends_the_connection(serving: Serving, size: int) -> None:
    with ServeClient(serving) as client:
        client.stream.sendall((size & 0xFFFFFFFF).to_bytes(4) + b"x" * 64)
        assert_closed(client.stream)
    assert_serves(serving)


@pytest.mark.parametrize("size", [LONGEST_RUN, 1_000_000])
def test_a_number_without_an_end_is_refused_at_once(serving: Serving, size: int) -> None:
    """kafka-python's own decoder makes one number of all these bytes, which takes minutes for a million of them."""
    body = b"\xff" * size
    frame = bytes.fromhex("0003 000c 00000001 0004") + b"test" + b"\0" + body
    with ServeClient(serving) as client:
        began = time.monotonic()
        client.stream.sendall(len(frame).to_bytes(4) + frame)
        assert_closed(client.stream)
        assert time.monotonic() - began < 5
    assert_serves(serving)


def test_a_list_that_is_longer_than_its_request_is_refused_at_once(serving: Serving) -> None:
    frame = bytes.fromhex("0003 0008 00000001 0004") + b"test" + bytes.fromhex("7fffffff") + b"\0" * 50
    with ServeClient(serving) as client:
        began = time.monotonic()
        client.stream.sendall(len(frame).to_bytes(4) + frame)
        assert_closed(client.stream)
        assert time.monotonic() - began < 5


def test_a_list_of_nothings_is_refused(serving: Serving) -> None:
    """Each of them takes two bytes here, and a hundred times that in memory."""
    count = 300_000
    frame = bytes.fromhex("0003 0001 00000001 0004") + b"test" + count.to_bytes(4) + b"\0\0" * count
    with ServeClient(serving) as client:
        client.stream.sendall(len(frame).to_bytes(4) + frame)
        assert_closed(client.stream)
    assert serving.server.counts.hostile == 1


def test_only_requests_with_records_may_be_large(serving: Serving) -> None:
    for key, size in ((3, (1 << 20) + 1), (1, (4 << 20) + 1), (0, (16 << 20) + 1)):
        with ServeClient(serving) as client:
            with suppress(ConnectionResetError, BrokenPipeError):
                client.stream.sendall(size.to_bytes(4) + key.to_bytes(2) + b"\0" * 100)
            assert_closed(client.stream)
    assert_serves(serving)


def test_a_client_that_stops_in_the_middle_is_sent_away(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_FRAME_SECONDS", 0.3)
    with served(store) as serving, ServeClient(serving) as client:
        client.stream.sendall(b"\0\0\1\0half")
        assert_closed(client.stream)
        assert_serves(serving)


def test_a_client_that_takes_nothing_is_sent_away(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_STALL_SECONDS", 0.3)
    with served(store) as serving, ServeClient(serving) as client:
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ask = encoded_request(fetch_request(TOPIC), 12)
        until = time.monotonic() + 10
        while serving.server.clients:
            assert time.monotonic() < until, "the connection is still open"
            with suppress(OSError):  # broken pipe, or reset
                client.stream.sendall(ask)
        assert_serves(serving)


def _read_on(serving: Serving) -> None:
    """Read the same records again and again, until the server closes the connection."""
    with suppress(OSError, EOFError), ServeClient(serving) as client:
        while True:
            client.fetch(TOPIC)


def test_the_server_stops_at_once_while_clients_read(store: MemoryStore) -> None:
    for _ in range(5):
        with served(store) as serving:
            readers = [threading.Thread(target=_read_on, args=(serving,), daemon=True) for _ in range(8)]
            for reader in readers:
                reader.start()
            time.sleep(0.1)
            begun = time.monotonic()
        assert time.monotonic() - begun < 5
        for reader in readers:
            reader.join(5)
            assert not reader.is_alive(), "its connection is still open"


def test_the_connections_of_a_user_who_is_removed_end(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbackup.serve.service.USERS_SECONDS", 0.1)
    users = tmp_path / "users"
    write_user(users, "anna", "first")
    write_user(users, "ben", "other")
    logins = Logins(UsersFile(users))
    with served(store, logins=logins) as serving, ServeClient(serving) as anna, ServeClient(serving) as ben:
        log_in(anna, "anna", "first")
        log_in(ben, "ben", "other")
        # One that waits for records that never come.
        anna.send(fetch_request(TOPIC, 0, 200, max_wait_ms=60_000), 12)
        kept = [line for line in users.read_text().splitlines() if not line.startswith("anna ")]
        users.write_text("\n".join(kept))
        assert_closed(anna.stream)
        time.sleep(0.3)
        assert records_of(ben.fetch(TOPIC, 1).records) == RECORDS[:3]


def log_in(client: ServeClient, user: str, password: str) -> None:
    client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    message = f"\0{user}\0{password}".encode()
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, 1)
    assert answer.error_code == 0


def test_too_many_connections_are_turned_away(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST_CONNECTIONS", 3)
    with served(store) as serving:
        open_clients = [ServeClient(serving) for _ in range(3)]
        for client in open_clients:
            assert client.fetch(TOPIC).error_code == 0
        with ServeClient(serving) as late:
            assert_closed(late.stream)
        assert open_clients[0].fetch(TOPIC).error_code == 0
        for client in open_clients:
            client.stream.close()


def test_records_that_are_refused_take_no_memory(serving: Serving) -> None:
    """Twenty clients have sent most of 15 MiB each, and wait."""
    kind = producer.ProduceRequest.TopicProduceData
    data = [kind(name=TOPIC, partition_data=[kind.PartitionProduceData(index=0, records=b"r" * (15 << 20))])]
    request = producer.ProduceRequest(transactional_id=None, acks=1, timeout_ms=1000, topic_data=data)
    frame = encoded_request(request, 9)
    before = _resident_bytes()
    with ExitStack() as stack:
        clients = [stack.enter_context(ServeClient(serving)) for _ in range(20)]
        for client in clients:
            client.stream.sendall(frame[: 14 << 20])
        assert _resident_bytes() - before < 100 << 20
        for client in clients:
            client.stream.sendall(frame[14 << 20 :])
            answer = client.read(int.from_bytes(client.read(4)))
            assert ErrorCode.POLICY_VIOLATION.to_bytes(2) in answer


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _seeds() -> list[bytes]:
    """One request of each kind that matters, in several versions."""
    kind = metadata.MetadataRequest.MetadataRequestTopic
    seeds = [encoded_request(fetch_request(TOPIC), version) for version in (4, 9, 12)]
    seeds += [encoded_request(metadata.MetadataRequest(topics=[kind(name=TOPIC)]), version) for version in (1, 8, 12)]
    offsets = consumer.ListOffsetsRequest.ListOffsetsTopic
    partition = offsets.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=5)
    listed = consumer.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[offsets(name=TOPIC, partitions=[partition])]
    )
    seeds += [encoded_request(listed, version) for version in (1, 7)]
    seeds.append(encoded_request(metadata.ApiVersionsRequest(client_software_name="a", client_software_version="b"), 3))
    resource = admin.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=TOPIC, configuration_keys=None
    )
    seeds.append(encoded_request(admin.DescribeConfigsRequest(resources=[resource]), 4))
    return seeds


def _mutated(seed: bytes, chance: random.Random) -> bytes:
    data = bytearray(seed[4:])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        way = chance.randrange(4)
        if way == 0:
            data[at] = chance.randrange(256)
        elif way == 1:
            data[at : at + 4] = chance.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0"])
        elif way == 2:
            del data[at : at + chance.randint(1, 6)]
        else:
            data[at:at] = chance.randbytes(chance.randint(1, 6))
        if not data:
            data = bytearray(b"\0")
    return len(data).to_bytes(4) + bytes(data)


def test_mutated_requests_harm_nobody_else(serving: Serving) -> None:
    """Each of them is answered, or its connection closed, or waits for the rest of it; another client reads all the
    while."""
    chance = random.Random(49)
    seeds = _seeds()
    with ServeClient(serving) as other:
        for number in range(MUTATIONS):
            with ServeClient(serving) as client:
                client.stream.settimeout(0.05)
                client.stream.sendall(_mutated(chance.choice(seeds), chance))
                client.stream.shutdown(socket.SHUT_WR)
                with suppress(TimeoutError, ConnectionResetError):
                    client.stream.recv(1 << 16)
            if number % 20 == 0:
                assert records_of(other.fetch(TOPIC, 1).records) == RECORDS[:3], number
    assert serving.server.counts.failed == 0


@pytest.mark.parametrize("frame", ["", "0003", "0003 0001 0000 0001 0009 6162", "0003 0001 0000 0001 fffe"])
def test_a_head_that_is_none_is_refused(frame: str) -> None:
    with pytest.raises(HostileClientError):
        read_header(bytes.fromhex(frame))


def test_a_client_may_have_no_name() -> None:
    header = read_header(bytes.fromhex("0003 0001 00000007 ffff 0102"))
    assert header == RequestHeader(3, 1, 7, "", memoryview(b"\1\2"))
