"""ACLs under the names that topics and groups have on a target. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from msgspec.structs import replace

from kbackup.archive.models import Part
from kbackup.metadata.entities import Acl


class LeftOut(Part, frozen=True, kw_only=True):
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Names:
    """What topics and groups are called on the target, by their old names. `left_out` are topics that the restore point
    has and that are not restored."""

    topics: Mapping[str, str]
    left_out: Set[str]
    groups: Mapping[str, str]

    @property
    def renamed(self) -> bool:
        return any(old != new for names in (self.topics, self.groups) for old, new in names.items())


def acl_words(acl: Acl) -> str:
    return (
        f"{acl.permission} {acl.operation} for {acl.principal} from {acl.host} "
        f"on {acl.resource} {acl.name} ({acl.pattern})"
    )


def map_acls(acls: Iterable[Acl], names: Names) -> tuple[set[Acl], list[LeftOut]]:
    """ACLs under the target's names; and those of topics that are not restored. One for a name that the archive doesn't
    know is kept as it is: it waits for a topic that may come."""
    found: set[Acl] = set()
    left: list[LeftOut] = []
    for acl in acls:
        if acl.pattern != "literal" or acl.name == "*":
            found.add(acl)
        elif acl.resource == "topic" and acl.name in names.left_out:
            left.append(LeftOut(what=f"ACL: {acl_words(acl)}", why="the topic is not restored"))
        elif acl.resource == "topic":
            found.add(replace(acl, name=names.topics.get(acl.name, acl.name)))
        elif acl.resource == "group":
            found.add(replace(acl, name=names.groups.get(acl.name, acl.name)))
        else:
            found.add(acl)
    return found, left


def denials_first(acl: Acl) -> tuple[object, ...]:
    fields = (acl.resource, acl.name, acl.pattern, acl.principal, acl.host, acl.operation)
    return acl.permission != "deny", fields


def kept_patterns(acls: Iterable[Acl], names: Names) -> list[str]:
    if not names.renamed:
        return []
    kept = sorted(
        {
            f"{acl.resource} {acl.name} ({'any' if acl.name == '*' else acl.pattern})"
            for acl in acls
            if acl.resource in ("topic", "group") and (acl.pattern != "literal" or acl.name == "*")
        }
    )
    return [
        f"names change in this restore, but ACLs for patterns stay as they are: do {pattern} still mean the right ones?"
        for pattern in kept
    ]
