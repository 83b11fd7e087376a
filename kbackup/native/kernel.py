"""Select how records are read from and passed to librdkafka: by compiled code or by confluent-kafka's messages.

The compiled code ("native kernel") is used where it loads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Literal, NamedTuple

from kbackup.errors import UsageError

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
        from kbackup.native.compiled import version
    except ImportError as error:
        why = f"the native one does not load ({error})"
        if asked == "native":
            raise UsageError(f"{VARIABLE} asks for the native kernel: {why}", _HINT) from error
        return Kernel("python", why)
    return Kernel("native", f"librdkafka {version}")


def load_kernel() -> None:
    """Import the selected kernel before its first use; an invalid selection is reported at that use."""
    with suppress(UsageError):
        if selected_kernel().name == "native":
            from kbackup.native import sink, source  # noqa: F401


def log_kernels(kernels: Iterable[Kernel]) -> None:
    """Log the kernels that the tasks of a job used; as a warning where a task used the slower one unasked."""
    found = sorted(set(kernels))
    slow = any(each.name == "python" and each.why != _ASKED for each in found)
    words = ", ".join(f"the {each.name} kernel: {each.why}" for each in found)
    if words:
        log.log(logging.WARNING if slow else logging.INFO, "records passed through %s", words)
