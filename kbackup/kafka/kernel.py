"""Which way records take between librdkafka and their encoded form: the native kernel, where it loads, or
confluent-kafka's message objects."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal, NamedTuple

from kbackup.errors import UsageError
from kbackup.kafka.client.client import Connection
from kbackup.kafka.consume.source_protocol import Source
from kbackup.kafka.produce.outlet import Outlet

log = logging.getLogger(__name__)

VARIABLE = "KBACKUP_KERNEL"
_ASKED = f"{VARIABLE} says so"
_HINT = "unset it, or install kafka-kbackup[native] on a platform that it has wheels for"


class Kernel(NamedTuple):
    name: Literal["native", "python"]
    why: str


@cache
def chosen() -> Kernel:
    """By `KBACKUP_KERNEL` (native or python), else native where it loads: once and for all in a process."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in {"", "native", "python"}:
        raise UsageError(f"{VARIABLE} is {asked!r}", "native or python, or nothing")
    kernel = Kernel("python", _ASKED) if asked == "python" else _native()
    if asked == "native" and kernel.name != "native":
        raise UsageError(f"{VARIABLE} asks for the native kernel: {kernel.why}", _HINT)
    return kernel


def load() -> None:
    """Import what was chosen, before it is needed. A choice that can't be is told when it is."""
    with suppress(UsageError):
        if chosen().name == "native":
            from kbackup.kafka.native import outlet, source  # noqa: F401


def say(kernels: Iterable[Kernel]) -> None:
    """One log line on what the tasks of a job used; a warning where one is slower than it need be."""
    found = sorted(set(kernels))
    slow = any(each.name == "python" and each.why != _ASKED for each in found)
    words = ", ".join(f"the {each.name} kernel: {each.why}" for each in found)
    if words:
        log.log(logging.WARNING if slow else logging.INFO, "records passed through %s", words)


def _native() -> Kernel:
    try:
        from kbackup.kafka.native import version
    except ImportError as error:
        return Kernel("python", f"the native one does not load ({error})")
    return Kernel("native", f"librdkafka {version}")


def source(connection: Connection, tuning: Mapping[str, Any]) -> Source:
    if chosen().name == "native":
        from kbackup.kafka.native.source import KernelSource

        return KernelSource(connection, tuning)
    from kbackup.kafka.consume.messages import MessageSource

    return MessageSource(connection, tuning)


def outlet(connection: Connection, tuning: Mapping[str, Any], group: str) -> Outlet:
    """`group` is the one that progress goes to."""
    if chosen().name == "native":
        from kbackup.kafka.native.outlet import KernelOutlet

        return KernelOutlet(connection, tuning, group)
    from kbackup.kafka.produce.message_outlet import MessageOutlet

    return MessageOutlet(connection, tuning)
