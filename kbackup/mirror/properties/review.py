"""Keys that have no meaning here, are doubtful, or are refused."""

from __future__ import annotations

from kbackup.errors import UsageError, suggest_name
from kbackup.mirror.properties.clients import is_common
from kbackup.mirror.properties.keys import (
    CONNECT,
    FILTER_CLASSES,
    FLOW_KEYS,
    KEYS,
    KNOWN,
    OWN_KEYS,
    REFUSED,
    REGISTRY_KEYS,
    ROLES,
)
from kbackup.mirror.properties.sections import Sections

_OF_FLOW = (
    "source.consumer.",
    "source.producer.",
    "source.admin.",
    "source.cluster.",
    "target.consumer.",
    "target.producer.",
    "target.admin.",
    "target.cluster.",
    *ROLES,
)
"""What the keys of a flow's clients begin with."""


def review(sections: Sections) -> tuple[list[str], list[str]]:
    """Return (notes, warnings): the keys that have no meaning here, and those that are doubtful. Raise `UsageError`
    for a key that is refused."""
    for key in sections.stray:
        source, _, rest = key.partition("->")
        target, _, _ = rest.partition(".")
        unknown = source if source not in sections.clusters else target
        raise _unknown_cluster(sections, key, unknown)
    found = Review(sections)
    by_prefix = {"": sections.top, **sections.by_prefix()}
    for prefix, section in by_prefix.items():
        for name, value in section.items():
            found.add(prefix, name, value)
    return found.notes, found.warnings


class Review:
    """What is to be said about the keys of a file. A prefix is '' for all flows, else `A.` or `A->B.`."""

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def add(self, prefix: str, name: str, value: str) -> None:
        """Look at one key. Raise `UsageError` for a key that is refused, or that is most likely misspelled."""
        where = f"{self._sections.file}: {prefix}{name}"
        _check_refused(name, value, where)
        if name == "use.defaults.from" and value.strip() == "source":
            self.warnings.append(
                f"{where} = source has no effect: an archive does not hold the defaults of the source's brokers; "
                f"set {name} = target"
            )
        if not _is_known(prefix, name) and name not in FILTER_CLASSES:
            self._add_unknown(prefix, name, where)

    def _add_unknown(self, prefix: str, name: str, where: str) -> None:
        meant = [key for key in KNOWN if _is_one_letter_off(name, key)]
        if meant:
            raise UsageError(f"{where} is no key of MirrorMaker 2", f"did you mean {prefix}{meant[0]}?")
        alias, _, rest = name.partition(".")
        is_of_connect = CONNECT.fullmatch(name) is not None
        if not prefix and not is_of_connect and f"{alias}." not in ROLES and _is_of_cluster(rest):
            raise _unknown_cluster(self._sections, name, alias)
        if is_of_connect or (not prefix and name.startswith(ROLES)):
            self.notes.append(f"{where} has no meaning here")
        elif prefix and "->" not in prefix:
            hint = f"write {prefix}consumer.{name} or {prefix}producer.{name}"
            if name in FLOW_KEYS:
                hint = f"write it for all flows, or for a flow: A->B.{name}"
            self.warnings.append(f"{where} has no meaning, in MirrorMaker 2 neither: {hint}")
        else:
            hint = suggest_name(name, FLOW_KEYS, "it is left out")
            self.warnings.append(f"{where} is no key of MirrorMaker 2: {hint}")


def _is_known(prefix: str, name: str) -> bool:
    """Return whether a key has a meaning where it stands."""
    if "->" in prefix:
        return name in KEYS or name.startswith(_OF_FLOW)
    if prefix:
        return _is_of_cluster(name)
    return name in KEYS or is_common(name)


def _is_one_letter_off(name: str, other: str) -> bool:
    """Return whether a letter more, less, or another one, or two swapped ones make `other` of `name`."""
    if name == other:
        return False
    at = 0
    while at < min(len(name), len(other)) and name[at] == other[at]:
        at += 1
    rest, due = name[at:], other[at:]
    swapped = rest[1:2] + rest[:1] + rest[2:]
    is_swapped_or_longer = due in (swapped, rest[1:])
    is_shorter_or_other = due[1:] in (rest, rest[1:])
    return is_swapped_or_longer or is_shorter_or_other


def _is_of_cluster(name: str) -> bool:
    """Return whether a cluster has the key `name`."""
    return name in OWN_KEYS or name in REGISTRY_KEYS or is_common(name) or name.startswith(ROLES)


def _unknown_cluster(sections: Sections, key: str, alias: str) -> UsageError:
    names = ", ".join(sections.clusters)
    hint = suggest_name(alias, sections.clusters, f"write one of {names}, or add it to clusters")
    return UsageError(f"{sections.file}: {key}: clusters does not name {alias}", hint)


def _check_refused(name: str, value: str, where: str) -> None:
    if name in REFUSED:
        raise UsageError(f"{where} is no key of MirrorMaker 2", REFUSED[name])
    # Other programs read the same file, so their keys are only noted. Keys that begin so are meant for kbackup alone.
    known = (*OWN_KEYS, *REGISTRY_KEYS)
    if name.startswith("kbackup.") and name not in known:
        hint = suggest_name(name, known, f"keys are {', '.join(known)}")
        raise UsageError(f"{where} is no key of kbackup", hint)
    if name.startswith("cluster.") and name.endswith((".bootstrap.servers", ".broker.list")):
        alias = name.split(".")[1]
        raise UsageError(f"{where} is no key of MirrorMaker 2", f"write {alias}.bootstrap.servers")
    if name.partition(".")[0] in ("transforms", "predicates") and value.strip():
        raise UsageError(
            f"{where} changes records, and a mirror copies them as they are",
            "remove the key, or change the records in a program that reads the remote topic",
        )
    if name == "connector.class" and "Sink" in value:
        raise UsageError(f"{where} names a sink connector", "remove the key: 'kbackup mirror' writes by itself")
    if name in FILTER_CLASSES:
        whole_name = FILTER_CLASSES[name]
        _, _, short_name = whole_name.rpartition(".")
        if value.strip() not in (whole_name, short_name):
            subject, _, _ = name.partition(".")
            raise UsageError(
                f"{where} names Java code, which can't be run here",
                f"remove the key, and select by {subject}s and {subject}s.exclude",
            )
