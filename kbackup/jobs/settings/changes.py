"""Changes of settings, as a plan, a report and an undo have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from kbackup.archive.models import Member
from kbackup.metadata.entities import Acl, ClientQuota, QuotaEntity, QuotaKey

Kind = Literal["broker", "group", "client metrics"]


class ConfigChange(Member, frozen=True, kw_only=True):
    """`before` is null where nothing was set at run time; `after` is null where the config is removed. `of_all`: the
    default of all brokers, whose `owner` is empty. A subscription to client metrics is the `owner` of its configs."""

    kind: Kind
    owner: str
    name: str
    before: str | None
    after: str | None
    of_all: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the owner and name of the setting."""
        return self.kind, self.owner, self.name


class QuotaChange(Member, frozen=True, kw_only=True):
    """A quota of an entity (`ClientQuota`), such as producer_byte_rate; null: none."""

    entity: QuotaEntity
    name: str
    before: float | None
    after: float | None

    @property
    def key(self) -> tuple[QuotaKey, str]:
        """Return the owner and name of the setting."""
        return entity_key(self.entity), self.name


def entity_key(entity: QuotaEntity) -> QuotaKey:
    return tuple(sorted(entity.items()))


def entity_words(entity: QuotaEntity) -> str:
    """Return words such as 'user alice, default client-id'."""
    return ", ".join(
        f"default {kind}" if name is None else f"{kind} {name}"
        for kind, name in sorted(entity.items(), reverse=True)
    )


def quota_values(quotas: Iterable[ClientQuota]) -> dict[tuple[QuotaKey, str], float]:
    return {(entity_key(q.entity), name): value for q in quotas for name, value in q.quotas.items()}


def quota_changes(archived: Iterable[ClientQuota], there: Iterable[ClientQuota]) -> tuple[QuotaChange, ...]:
    """Return the changes that set the quotas of `archived`; other quotas stay."""
    now = quota_values(there)
    return tuple(
        QuotaChange(entity=dict(entity), name=name, before=now.get((entity, name)), after=value)
        for (entity, name), value in sorted(quota_values(archived).items(), key=lambda item: repr(item[0]))
        if now.get((entity, name)) != value
    )


class Changes(Member, frozen=True, kw_only=True):
    """Changes to make on a target."""

    acls: tuple[Acl, ...] = ()
    deleted_acls: tuple[Acl, ...] = ()
    configs: tuple[ConfigChange, ...] = ()
    quotas: tuple[QuotaChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.acls or self.deleted_acls or self.configs or self.quotas)
