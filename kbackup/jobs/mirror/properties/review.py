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
    warnings: list[str] = []
    for key in sections.stray:
        aliases = key.partition("->")[0], key.partition("->")[2].partition(".")[0]
        raise _unknown_cluster(sections, key, next(a for a in aliases if a not in sections.clusters))
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
        meant = next((other for other in _KNOWN if _is_one_letter_off(name, other)), None)
        if meant is not None:
            raise UsageError(f"{where} is no key of MirrorMaker 2", f"did you mean {prefix}{meant}?")
        alias, _, rest = name.partition(".")
        if not prefix and not is_connect_key(name) and alias + "." not in ROLES and _is_of_cluster(rest):
            raise _unknown_cluster(sections, name, alias)
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


_KNOWN = (*FLOW_KEYS, *OWN_KEYS, *FILTER_CLASSES, "clusters", "bootstrap.servers", "security.protocol")


def _is_one_letter_off(name: str, other: str) -> bool:
    """Return whether a letter more, less, or another one, or two swapped ones make `other` of `name`."""
    at = next(
        (n for n, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), min(len(name), len(other))
    )
    rest, due = name[at:], other[at:]
    swapped = rest[1:2] + rest[:1] + rest[2:]
    return name != other and (due in (swapped, rest[1:]) or due[1:] in (rest, rest[1:]))


def _is_of_cluster(name: str) -> bool:
    """Return whether a cluster has the key `name`."""
    return name in OWN_KEYS or is_common(name) or name.startswith(ROLES)


def _unknown_cluster(sections: Sections, key: str, alias: str) -> UsageError:
    otherwise = f"write one of {', '.join(sections.clusters)}, or add it to clusters"
    return UsageError(
        f"{sections.file}: {key}: clusters does not name {alias}",
        suggest_name(alias, sections.clusters, otherwise),
    )


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
    if name.partition(".")[0] in ("transforms", "predicates") and value.strip():
        raise UsageError(
            f"{where} changes records, and a mirror copies them as they are",
            "remove the key, or change the records in a program that reads the remote topic",
        )
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
