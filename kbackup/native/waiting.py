"""Calls of librdkafka that may never come back."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Waiting:
    """`call`, on its way in a thread of its own, which keeps nobody from ending and goes on until the call returns."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="kbackup-waiting", daemon=True)
        self._thread.start()

    def ended(self, seconds: float = 0) -> bool:
        """Return True when the call has ended, or ends within `seconds`; raises its error."""
        self._thread.join(seconds)
        if self._raised:
            raise self._raised[0]
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            self._raised.append(error)
