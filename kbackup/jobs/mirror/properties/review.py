"""Review the keys of a properties file: those without a meaning, doubtful ones, and refused ones."""

from __future__ import annotations

from collections.abc import Iterator

from kbackup.errors import UsageError, suggest_name
from kbackup.jobs.mirror.properties.clients import ROLES, is_common
from kbackup.jobs.mirror.properties.keys import (
    FILTER_CLASSES,
    FLOW_KEYS,
    OWN_KEYS,
    OWN_PREFIX,
    REFUSED,
    is_connect_key,
)
from kbackup.jobs.mirror.properties.sections import Sections

_CLIENTS = (*(f"{side}.{role}" for side in ("source", "target") for role in (*ROLES, "cluster.")), *ROLES)


def review(sections: Sections) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (notes, warnings): the keys that have no meaning here, and those that are doubtful. Raise `UsageError`
    for a key that is refused."""
    notes: list[str] = []
    warnings = [
        f"{sections.file}: {key} is of no flow: clusters does not name both" for key in sections.stray
    ]
    for prefix, name, value in _keys(sections):
        where = f"{sections.file}: {prefix}{name}"
        _check_refused(name, value, where)
        if name == "use.defaults.from" and value.strip() == "source":
            warnings.append(
                f"{where} = source has no effect: an archive does not hold the defaults of the source's brokers; "
                f"set {name} = target"
            )
        if prefix.count("->"):
            known = name in FLOW_KEYS or name in OWN_KEYS or name.startswith(_CLIENTS)
        elif prefix:
            known = name in OWN_KEYS or is_common(name) or name.startswith(ROLES)
        else:
            known = name in FLOW_KEYS or name in OWN_KEYS or is_common(name)
        if known or name in FILTER_CLASSES:
            continue
        if is_connect_key(name) or (not prefix and name.startswith(ROLES)):
            notes.append(f"{where} has no meaning here")
        elif prefix and "->" not in prefix:
            hint = f"write {prefix}consumer.{name} or {prefix}producer.{name}"
            if name in FLOW_KEYS:
                hint = f"write it for all flows, or for a flow: A->B.{name}"
            warnings.append(f"{where} has no meaning, in MirrorMaker 2 neither: {hint}")
        else:
            warnings.append(
                f"{where} is no key of MirrorMaker 2: {suggest_name(name, FLOW_KEYS, 'it is left out')}"
            )
    return tuple(notes), tuple(warnings)


def _keys(sections: Sections) -> Iterator[tuple[str, str, str]]:
    """(prefix, name, value) of every key of a known section."""
    yield from (("", name, value) for name, value in sections.top.items())
    for alias, section in sections.by_cluster.items():
        yield from ((f"{alias}.", name, value) for name, value in section.items())
    for pair, section in sections.by_flow.items():
        yield from ((f"{pair}.", name, value) for name, value in section.items())


def _check_refused(name: str, value: str, where: str) -> None:
    if name in REFUSED:
        raise UsageError(f"{where} is no key of MirrorMaker 2", REFUSED[name])
    if name.startswith(OWN_PREFIX) and name not in OWN_KEYS:
        raise UsageError(
            f"{where} is no key of kbackup", suggest_name(name, OWN_KEYS, f"keys are {', '.join(OWN_KEYS)}")
        )
    if name.startswith("cluster.") and name.endswith((".bootstrap.servers", ".broker.list")):
        alias = name.split(".")[1]
        raise UsageError(f"{where} is no key of MirrorMaker 2", f"write {alias}.bootstrap.servers")
    if name == "connector.class" and "Sink" in value:
        raise UsageError(
            f"{where} names a sink connector", "remove the key: 'kbackup mirror' writes by itself"
        )
    if name in FILTER_CLASSES and value.strip() not in (
        FILTER_CLASSES[name],
        FILTER_CLASSES[name].rpartition(".")[2],
    ):
        raise UsageError(
            f"{where} names Java code, which can't be run here",
            f"remove the key, and select by {name.split('.')[0]}s and {name.split('.')[0]}s.exclude",
        )
