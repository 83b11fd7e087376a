"""ACLs under the names that topics and groups have on a target. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from msgspec.structs import replace

from kbackup.archive.models import Member
from kbackup.metadata.entities import Acl


class SkippedSetting(Member, frozen=True, kw_only=True):
    """A setting that a restore does not apply, and the reason."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Names:
    """Names of topics and groups on the target, by their archived names. `skipped_topics` are topics that the restore
    point has and that are not restored."""

    topics: Mapping[str, str]
    skipped_topics: Set[str]
    groups: Mapping[str, str]

    @property
    def renamed(self) -> bool:
        return any(old != new for names in (self.topics, self.groups) for old, new in names.items())


def acl_words(acl: Acl) -> str:
    return (
        f"{acl.permission} {acl.operation} for {acl.principal} from {acl.host} "
        f"on {acl.resource} {acl.name} ({acl.pattern})"
    )


def map_acls(acls: Iterable[Acl], names: Names) -> tuple[set[Acl], list[SkippedSetting]]:
    """Return ACLs under the target's names, and the ACLs of topics that are not restored. An ACL of a name that the
    archive doesn't have stays unchanged: its topic may be created later."""
    mapped: set[Acl] = set()
    skipped: list[SkippedSetting] = []
    for acl in acls:
        if acl.pattern != "literal" or acl.name == "*":
            mapped.add(acl)
        elif acl.resource == "topic" and acl.name in names.skipped_topics:
            skipped.append(SkippedSetting(what=f"ACL: {acl_words(acl)}", why="the topic is not restored"))
        elif acl.resource == "topic":
            mapped.add(replace(acl, name=names.topics.get(acl.name, acl.name)))
        elif acl.resource == "group":
            mapped.add(replace(acl, name=names.groups.get(acl.name, acl.name)))
        else:
            mapped.add(acl)
    return mapped, skipped


def denials_first(acl: Acl) -> tuple[object, ...]:
    fields = (acl.resource, acl.name, acl.pattern, acl.principal, acl.host, acl.operation)
    return acl.permission != "deny", fields


def pattern_warnings(acls: Iterable[Acl], names: Names) -> list[str]:
    """Return a warning for each pattern of ACLs that stays unchanged though names change."""
    if not names.renamed:
        return []
    patterns = sorted(
        {
            f"{acl.resource} {acl.name} ({'any' if acl.name == '*' else acl.pattern})"
            for acl in acls
            if acl.resource in ("topic", "group") and (acl.pattern != "literal" or acl.name == "*")
        }
    )
    return [
        f"names change in this restore, but ACLs for patterns stay as they are: do {pattern} still mean the right ones?"
        for pattern in patterns
    ]
