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


def active_state(urls: Iterable[str]) -> State | None:
    """Of the controller that says that it is the active one; None where none does."""
    for url in urls:
        values = read(url)
        if values.get("ActiveControllerCount") == 1:
            names: tuple[State, ...] = get_args(State)
            return names[int(values["ZkMigrationState"])]
    return None


def read(url: str) -> dict[str, float]:
    """The controller's gauges by name; none where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return {name: float(value) for name, value in _VALUE.findall(text)}
