"""What a check is, and the words that checks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kbackup.migrate.znodes import MigrationFindings
from kbackup.util.text import join_names, words_of

_NAMES_SHOWN = 5  # that a line shows

MIGRATION_FLAG = "zookeeper.metadata.migration.enable"
"""The property of brokers and controllers that lets a migration begin."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check: the name of its line, and its function.

    The function returns the detail of a line that is ok. It raises `ProblemError` for what is wrong, and `UnreadError`
    for a source that it needs and that was not read.
    """

    name: str
    run: Callable[[MigrationFindings], str]


def listed(names: Iterable[object]) -> str:
    """Return names in order, shortened: '1, 2 and 7 more'. Numbers are in the order of their values."""
    in_order = sorted(names, key=_number_first)
    texts = [str(name) for name in in_order]
    return join_names(texts, _NAMES_SHOWN)


def _number_first(name: object) -> tuple[int, str]:
    return (name, "") if isinstance(name, int) else (0, str(name))


def each_broker(values: Mapping[int, str]) -> str:
    """Return a text for each broker, shortened: 'broker 1: 3.3, broker 2: 3.2'."""
    texts = [f"broker {broker}: {text}" for broker, text in sorted(values.items())]
    return join_names(texts, _NAMES_SHOWN)


def is_true(properties: Mapping[str, str], name: str) -> bool:
    """Return whether a property is set to true, as Kafka reads it."""
    return properties.get(name, "").strip().lower() == "true"


def upper_words(properties: Mapping[str, str], name: str) -> list[str]:
    """Return the words of a list of names in capitals: Kafka doesn't tell small letters from large ones there."""
    return words_of(properties.get(name, "").upper())
