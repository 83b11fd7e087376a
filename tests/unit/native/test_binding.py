"""The assumptions of the kernels about librdkafka and their installation."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer

from kbackup.errors import UsageError
from kbackup.kafka.client import Connection
from kbackup.native import client, library, librdkafka
from kbackup.native.client import Handle
from kbackup.native.contract import CommittedProgress
from kbackup.native.library import client_of
from kbackup.native.librdkafka import CONSUMER, EVENT_DELIVERY, PRODUCER, lib
from kbackup.types import TopicPartition

_NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
_FOR_CLIENTS: dict[str, str | int | float | bool] = {**_NOWHERE, "log_level": 0}
_TOPIC_HANDLE, _PARTITION, _VALUE, _KEY, _OPAQUE = 2, 3, 4, 5, 6
_PURGE_QUEUE = -152


class Message(ctypes.Structure):
    """librdkafka's rd_kafka_message_t."""

    _fields_ = (
        ("error", ctypes.c_int32),
        ("topic", ctypes.c_int64),
        ("partition", ctypes.c_int32),
        ("value", ctypes.c_int64),
        ("value_size", ctypes.c_int64),
        ("key", ctypes.c_int64),
        ("key_size", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("opaque", ctypes.c_int64),
    )


def test_a_message_is_laid_out_as_the_kernels_read_it() -> None:
    """Sent to nobody, purged, and found again in its delivery event."""
    handle = Handle(Connection(_NOWHERE, "target"), PRODUCER, {}, EVENT_DELIVERY)
    topic = handle.topic("t")
    key, value = ctypes.create_string_buffer(b"key", 3), ctypes.create_string_buffer(b"values", 6)
    arguments = np.zeros((5, 9), np.int64)
    arguments[:, 0] = _TOPIC_HANDLE, _PARTITION, _VALUE, _KEY, _OPAQUE
    arguments[0, 1], arguments[1, 1], arguments[4, 1] = topic, 3, 77
    arguments[2, 1:3] = ctypes.addressof(value), 6
    arguments[3, 1:3] = ctypes.addressof(key), 3
    assert lib.rd_kafka_produceva(handle.client, arguments.ctypes.data, len(arguments)) is None
    assert lib.rd_kafka_purge(handle.client, 1) == 0
    pointer = np.zeros(1, np.int64)
    event = None
    while event is None or lib.rd_kafka_event_type(event) != EVENT_DELIVERY:
        if event is not None:
            handle.take_event(event)
        event = lib.rd_kafka_queue_poll(handle.main, 10_000)
        assert event, "no delivery event came"
    assert lib.rd_kafka_event_message_array(event, pointer.ctypes.data, 1) == 1
    message = Message.from_address(int(pointer[0]))
    assert (message.error, message.topic, message.partition) == (_PURGE_QUEUE, topic, 3)
    assert ctypes.string_at(message.value, message.value_size) == b"values"
    assert ctypes.string_at(message.key, message.key_size) == b"key"
    assert message.opaque == 77
    lib.rd_kafka_event_destroy(event)
    lib.rd_kafka_topic_destroy(topic)
    handle.close()


def test_progress_is_handed_over_with_the_byte_that_ends_its_note() -> None:
    progress = {
        TopicPartition("orders", 3): CommittedProgress(2**62, "\u00fc"),
        TopicPartition("t", 0): CommittedProgress(0, ""),
    }
    made = client._partitions_of(progress)
    try:
        entries = made.contents.elems[: made.contents.cnt]
        found = [(e.topic, e.partition, e.offset, ctypes.string_at(e.metadata, e.metadata_size)) for e in entries]
    finally:
        lib.rd_kafka_topic_partition_list_destroy(made)
    assert found == [(b"orders", 3, 2**62, "ü\0".encode()), (b"t", 0, 0, b"\0")]


def test_a_value_that_is_refused_is_not_shown() -> None:
    properties = {**_NOWHERE, "security.protocol": "my-secret-value"}
    with pytest.raises(UsageError, match=r"security\.protocol") as raised:
        Handle(Connection(properties, "source"), CONSUMER, {})
    assert "my-secret-value" not in str(raised.value)


def test_properties_that_do_not_fit_each_other_are_said() -> None:
    properties = {**_NOWHERE, "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
    with pytest.raises(UsageError, match="sasl"):
        Handle(Connection(properties, "source"), CONSUMER, {})


def test_clients_are_found_in_their_objects() -> None:
    producer, consumer = Producer(_FOR_CLIENTS), Consumer({**_FOR_CLIENTS, "group.id": "g"})
    assert lib.rd_kafka_opaque(client_of(producer)) == id(producer)
    assert client_of(consumer) != client_of(producer)
    consumer.close()
    with pytest.raises(UsageError, match="keeps its client in another way"):
        client_of(consumer)  # it has none any more


@pytest.mark.parametrize(
    ("release", "missing", "reason"),
    [
        ("3.0.0", {}, "keeps its clients in a way that is not known"),
        ("2.99.0", {"rd_kafka_not_there": (None, ())}, "brings a librdkafka without rd_kafka_not_there"),
    ],
)
def test_an_unknown_release_of_confluent_kafka_is_named(
    release: str, missing: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "version", lambda name: release)
    monkeypatch.setattr(library, "_SIGNATURES", missing)
    with pytest.raises(UsageError, match=f"confluent-kafka {release} {reason}"):
        library._load()


def test_an_unknown_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "_NEWEST", 0x02060000)
    with pytest.raises(ImportError, match="not one of those known"):
        librdkafka._load()


def _python(code: str, *arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


_CHOOSE = (
    "import logging; logging.basicConfig(level='INFO')\n"
    "from kbackup.native import kernel; kernel.log_kernels([kernel.selected_kernel(), kernel.selected_kernel()])"
)


@pytest.mark.exhaustive
def test_without_numba_records_pass_through_message_objects() -> None:
    said = _python(f"import sys; sys.modules['numba'] = None\n{_CHOOSE}", KBACKUP_KERNEL="")
    assert said.count("records passed through") == 1
    assert "WARNING" in said
    assert "python kernel: the native one does not load" in said


def test_an_unavailable_kernel_is_an_error() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from kbackup.errors import UsageError\n"
        "from kbackup.native import kernel\n"
        "try: kernel.selected_kernel()\n"
        "except UsageError as error: print(error, error.hint)"
    )
    assert "install kafka-kbackup[native]" in _python(code, KBACKUP_KERNEL="native")


@pytest.mark.exhaustive
def test_kernels_are_kept_from_one_process_to_the_next(tmp_path: Path) -> None:
    code = "from kbackup.native import fill; print(sum(fill.fill.stats.cache_hits.values()))"
    env = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert [_python(code, **env).strip() for _ in range(2)] == ["0", "1"]


_LOAD_NOWHERE = """
import sys
from pathlib import Path
from numba.core import caching
caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator]
from kbackup.native import kept_code
kept_code.KEPT = Path(sys.argv[1])
from kbackup.native.compiled import fill, produce
from kbackup.native.schema_kernel import visit
kernels = [fill.fill, produce.send, visit]
print(sum(sum(each.stats.cache_hits.values()) for each in kernels))
"""
"""Load kernels where numba finds no place to keep them, and print how many of them it did not have to compile."""


@pytest.mark.exhaustive
def test_kernels_load_where_nothing_can_be_kept(tmp_path: Path) -> None:
    env = {"NUMBA_CACHE_DIR": "", "TMPDIR": str(tmp_path)}
    assert _python(_LOAD_NOWHERE, str(tmp_path / "none"), **env) == "0\n"
    assert list(tmp_path.iterdir()) == [], "the folder of the process goes with it"


@pytest.mark.exhaustive
def test_kernels_that_the_installation_keeps_are_not_compiled_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    _python("import kbackup.native.compiled", NUMBA_CACHE_DIR=str(kept))
    assert _python(_LOAD_NOWHERE, str(kept), NUMBA_CACHE_DIR="") == "3\n"
