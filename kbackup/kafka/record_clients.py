"""Clients for records: of the compiled kernels where they load, else of confluent-kafka's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbackup.errors import CorruptError
from kbackup.formats import fields
from kbackup.kafka.client import Connection
from kbackup.native.contract import SILENCE_SECONDS, RecordSink, Source
from kbackup.native.kernel import selected_kernel
from kbackup.types import RecordBlock


def open_source(connection: Connection, tuning: Mapping[str, Any]) -> Source:
    if selected_kernel().name == "native":
        from kbackup.native.source import KernelSource

        return KernelSource(connection, tuning)
    return open_message_source(connection, tuning)


def open_message_source(connection: Connection, tuning: Mapping[str, Any]) -> Source:
    """Return a source that loads no kernel: 0.4 s less where few records are read. It raises `HeaderKeyError` for
    records that only the native kernel reads."""
    from kbackup.kafka.messages import MessageSource

    return MessageSource(connection, tuning)


def open_sink(
    connection: Connection, tuning: Mapping[str, Any], group: str, silence: float = SILENCE_SECONDS
) -> RecordSink:
    """Return a sink of the selected kernel; `group` is the consumer group that progress is committed to. `silence` is
    how many seconds its queue may stand still before it looks for brokers anew."""
    if selected_kernel().name == "native":
        return open_kernel_sink(connection, tuning, group, silence)
    return open_message_sink(connection, tuning, group, silence)


def open_kernel_sink(
    connection: Connection, tuning: Mapping[str, Any], group: str, silence: float = SILENCE_SECONDS
) -> RecordSink:
    from kbackup.native.sink import KernelSink

    return KernelSink(connection, tuning, group, _damage, silence)


def open_message_sink(
    connection: Connection, tuning: Mapping[str, Any], group: str, silence: float = SILENCE_SECONDS
) -> RecordSink:
    """Return a sink that loads no kernel: half a second less where no records are sent."""
    from kbackup.kafka.messages import MessageSink

    return MessageSink(connection, tuning, group, silence)


def _damage(block: RecordBlock, record: int) -> CorruptError:
    """Return the error for a block in which the kernel refused `record`: the error of the plain codec, which names the
    damage."""
    try:
        fields.check(block, "record block", 0)
    except CorruptError as error:
        return error
    position = int(block.positions[record])
    return fields.corrupt("record block", position, "a record that is not what its index says")
