"""The state of a migration, as controllers report it by JMX and a Prometheus exporter."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Literal, get_args

State = Literal["NONE", "MIGRATION", "PRE_MIGRATION", "POST_MIGRATION", "ZK"]
CONFIG = 'includeObjectNames: ["kafka.controller:*"]\n'
_VALUE = re.compile(r'^kafka_controller_KafkaController_Value\{name="(\w+)",?\} (\S+)$', re.MULTILINE)


def agreed_state(urls: Iterable[str]) -> State | None:
    """Return the active controller's state once every standby controller that answers reports it too; else None.

    A standby controller reports a new state up to a second after the active one."""
    controllers = [values for url in urls if (values := read(url))]
    states = {values.get("ZkMigrationState") for values in controllers}
    (state,) = states if len(states) == 1 else (None,)
    if state is None or all(values.get("ActiveControllerCount") != 1 for values in controllers):
        return None
    names: tuple[State, ...] = get_args(State)
    return names[int(state)]


def read(url: str) -> dict[str, float]:
    """The controller's gauges by name; none where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return {name: float(value) for name, value in _VALUE.findall(text)}
