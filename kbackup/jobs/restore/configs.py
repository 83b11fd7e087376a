"""Find the configs that the target takes for new topics: an archive may be of a broker that knew other configs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kbackup.errors import KbackupError, UsageError
from kbackup.kafka.control.topics import RefusedConfigError, TopicAdmin, TopicToCreate
from kbackup.util.text import join_names

Config = tuple[str, str]
"""The name of a config, and its value."""

REPLACED = {
    "message.timestamp.difference.max.ms": ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
}
"""Configs that Kafka 4 no longer knows, with the configs that mean the same since Kafka 3.6."""

_AT_LEAST = re.compile(r"must be at least (\d+)")
_NAMED = 3  # topics that a note names


@dataclass
class SettledConfigs:
    """The configs that each topic is created with, by its name on the target. `refused` are the topics that can't be
    created with them either. `notes` tell what differs from the archive."""

    configs: dict[str, dict[str, str]]
    refused: dict[str, KbackupError]
    notes: list[str] = field(default_factory=list)


def settle_configs(admin: TopicAdmin, topics: Sequence[TopicToCreate], given: Mapping[str, str]) -> SettledConfigs:
    """Ask the target which configs it takes for new topics, and leave out, replace or raise the archived ones that it
    refuses. Nothing is created. `given` are configs that the user asked for: `UsageError` if the target refuses one."""
    settled = SettledConfigs({topic.name: dict(topic.configs) for topic in topics}, {})
    settled.refused = admin.create(topics, dry_run=True)
    with_refused: list[TopicToCreate] = []
    for topic in topics:
        if isinstance(settled.refused.get(topic.name), RefusedConfigError):
            with_refused.append(topic)
    if not with_refused:
        return settled
    reasons = refused_configs(admin, with_refused)
    for (name, value), reason in reasons.items():
        if given.get(name) == value:
            raise UsageError(f"--topic-config {name}={value}: the target refuses it: {reason}", _hint(name))
    concerned: defaultdict[Config, list[str]] = defaultdict(list)
    for topic in with_refused:
        for config in topic.configs.items():
            if config in reasons:
                concerned[config].append(topic.name)
    changed: set[str] = set()
    for config, topic_names in concerned.items():
        substitutes = _substitutes(config, reasons[config])
        for topic_name in topic_names:
            _substitute(settled.configs[topic_name], config, substitutes)
        changed.update(topic_names)
        settled.notes.append(_note(config, topic_names, substitutes, reasons[config]))
    again: list[TopicToCreate] = []
    for topic in with_refused:
        if topic.name in changed:
            again.append(replace(topic, configs=settled.configs[topic.name]))
            del settled.refused[topic.name]
    # Another config may be refused now: a broker names one at a time.
    settled.refused |= admin.create(again, dry_run=True)
    return settled


def _substitute(configs: dict[str, str], refused: Config, substitutes: Mapping[str, str]) -> None:
    """Replace a refused config by its substitutes. A config that the topic has of its own stays."""
    refused_name, _ = refused
    del configs[refused_name]
    for name, value in substitutes.items():
        configs.setdefault(name, value)


def refused_configs(admin: TopicAdmin, topics: Iterable[TopicToCreate]) -> dict[Config, str]:
    """Return the configs of `topics` that the target refuses, each with its reason."""
    # A broker names only the first config that it refuses, in words that differ from release to release. So each config
    # is asked for alone. In a round, every topic asks for one config of which no answer is known.
    reasons: dict[Config, str] = {}
    accepted: set[Config] = set()
    waiting = list(topics)
    while waiting:
        asked: dict[str, Config] = {}
        asked_configs: set[Config] = set()
        for topic in waiting:
            for config in topic.configs.items():
                if config not in reasons and config not in accepted and config not in asked_configs:
                    asked[topic.name] = config
                    asked_configs.add(config)
                    break
        waiting = [topic for topic in waiting if topic.name in asked]
        alone = [replace(topic, configs=dict([asked[topic.name]])) for topic in waiting]
        answers = admin.create(alone, dry_run=True)
        for topic_name, config in asked.items():
            error = answers.get(topic_name)
            if isinstance(error, RefusedConfigError):
                reasons[config] = error.reason
            else:
                accepted.add(config)
    return reasons


def _substitutes(config: Config, reason: str) -> dict[str, str]:
    """Return the configs that stand for a refused one as nearly as the target allows; none if there are none."""
    name, value = config
    if name in REPLACED:
        return dict.fromkeys(REPLACED[name], value)
    least = _AT_LEAST.search(reason)
    if least is not None and value.isdecimal() and int(value) < int(least[1]):
        return {name: least[1]}
    return {}


def _note(config: Config, topics: Sequence[str], substitutes: Mapping[str, str], reason: str) -> str:
    name, value = config
    text = f"{name}={value} of {join_names(topics, _NAMED)}: the target refuses it ({reason})"
    if not substitutes:
        return f"{text}; it is left out"
    instead = ", ".join(f"{name}={value}" for name, value in substitutes.items())
    return f"{text}; set instead: {instead}"


def _hint(name: str) -> str:
    """Return what to give for a config, where its name tells."""
    if name.endswith(".ms"):
        return "give whole milliseconds, such as 604800000 for 7 days, or leave the config out"
    if name.endswith(".bytes"):
        return "give whole bytes, such as 1073741824 for 1 GiB, or leave the config out"
    return "see Kafka's documentation of topic configs for names and values"


def whole_number(configs: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return the value of a config as a number; `UsageError` for one that is none."""
    value = configs.get(name)
    if value is None:
        return otherwise
    try:
        return int(value)
    except ValueError as error:
        raise UsageError(f"--topic-config {name}={value}: the value must be a whole number", _hint(name)) from error
