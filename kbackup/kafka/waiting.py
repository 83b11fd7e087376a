"""Calls of librdkafka that may never come back."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_time(call: Callable[[], object], seconds: float) -> bool:
    """Whether `call` ended within `seconds`; what it raised is raised here. One that did not goes on in a thread
    of its own, which keeps nobody from ending."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            raised.append(error)

    thread = threading.Thread(target=run, name="kbackup-waiting", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return not thread.is_alive()
