"""Select how records are read from and passed to librdkafka: by compiled code or by confluent-kafka's messages.

The compiled code ("native kernel") is used where it loads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal, NamedTuple

from kbackup.errors import UsageError
from kbackup.kafka.client import Connection
from kbackup.kafka.kernel_protocol import RecordSink, Source

log = logging.getLogger(__name__)

VARIABLE = "KBACKUP_KERNEL"
_ASKED = f"{VARIABLE} says so"
_HINT = "unset it, or install kafka-kbackup[native] on a platform that it has wheels for"


class Kernel(NamedTuple):
    name: Literal["native", "python"]
    why: str


@cache
def selected_kernel() -> Kernel:
    """Return the kernel that `KBACKUP_KERNEL` (native or python) names, else native where it loads.

    The result holds for the whole process.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in {"", "native", "python"}:
        raise UsageError(f"{VARIABLE} is {asked!r}", "set native or python, or unset the variable")
    if asked == "python":
        return Kernel("python", _ASKED)
    try:
        from kbackup.kafka.native.compiled import version
    except ImportError as error:
        why = f"the native one does not load ({error})"
        if asked == "native":
            raise UsageError(f"{VARIABLE} asks for the native kernel: {why}", _HINT) from error
        return Kernel("python", why)
    return Kernel("native", f"librdkafka {version}")


def load() -> None:
    """Import the selected kernel before its first use; an invalid selection is reported at that use."""
    with suppress(UsageError):
        if selected_kernel().name == "native":
            from kbackup.kafka.native import sink, source  # noqa: F401


def say(kernels: Iterable[Kernel]) -> None:
    """Log the kernels that the tasks of a job used; as a warning where a task used the slower one unasked."""
    found = sorted(set(kernels))
    slow = any(each.name == "python" and each.why != _ASKED for each in found)
    words = ", ".join(f"the {each.name} kernel: {each.why}" for each in found)
    if words:
        log.log(logging.WARNING if slow else logging.INFO, "records passed through %s", words)


def source(connection: Connection, tuning: Mapping[str, Any]) -> Source:
    if selected_kernel().name == "native":
        from kbackup.kafka.native.source import KernelSource

        return KernelSource(connection, tuning)
    from kbackup.kafka.messages import MessageSource

    return MessageSource(connection, tuning)


def sink(connection: Connection, tuning: Mapping[str, Any], group: str) -> RecordSink:
    """Return a sink of the selected kernel; `group` is the consumer group that progress is committed to."""
    if selected_kernel().name == "native":
        from kbackup.kafka.native.sink import KernelSink

        return KernelSink(connection, tuning, group)
    return message_sink(connection, tuning, group)


def message_sink(connection: Connection, tuning: Mapping[str, Any], group: str) -> RecordSink:
    """Return a sink that loads no kernel: half a second less where no records are sent."""
    from kbackup.kafka.messages import MessageSink

    return MessageSink(connection, tuning, group)
