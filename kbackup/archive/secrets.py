"""Which secrets of a cluster a restore point holds: all that were read in an encrypted archive, none in another.

Every metadata document passes here before it is stored. Secrets are the keys and salts of SCRAM credentials, the HMACs
of delegation tokens, and the values of sensitive configs.
"""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec.structs import replace

from kbackup.archive.models import ArchiveInfo, Metadata
from kbackup.metadata.entities import (
    BROKER_SECRETS,
    GROUP_SECRETS,
    SCRAM_SECRETS,
    TOKEN_SECRETS,
    BrokerConfig,
    Entity,
    GroupConfig,
    MetadataPartName,
    NotCarried,
)

_SENSITIVE = re.compile(
    r"(password|passphrase|secret|secret\.key|master\.key|private[._]?key|access[._]?key|api[._]?key|token|credentials?"
    r"|jaas\.config|user\.info|keystore\.key|keystore\.certificate\.chain|truststore\.certificates)$",
    re.IGNORECASE,
)
"""Names of configs that hold secrets: Kafka's own passwords, and the usual names in plug-ins."""
_SECRETS: dict[MetadataPartName, str] = {
    "scram_users": SCRAM_SECRETS,
    "delegation_tokens": TOKEN_SECRETS,
    "broker_configs": BROKER_SECRETS,
    "group_configs": GROUP_SECRETS,
}

E = TypeVar("E", bound=Entity)
C = TypeVar("C", BrokerConfig, GroupConfig)


def is_sensitive(config: str) -> bool:
    """Return whether a config holds a secret, by its name."""
    return bool(_SENSITIVE.search(config))


def as_archived(metadata: Metadata, info: ArchiveInfo) -> Metadata:
    """Return the document as the archive may hold it: with its secrets only where the archive is encrypted."""
    return metadata if info.encryption is not None else without_secrets(metadata)


def without_secrets(metadata: Metadata) -> Metadata:
    """Return the document with null for every secret, each kind of secret named in `not_carried`."""
    bare: dict[MetadataPartName, tuple[Entity, ...] | None] = {
        "scram_users": _emptied(metadata.scram_users, "salt", "stored_key", "server_key"),
        "delegation_tokens": _emptied(metadata.delegation_tokens, "hmac"),
        "broker_configs": _hidden(metadata.broker_configs),
        "group_configs": _hidden(metadata.group_configs),
    }
    lost = tuple(
        NotCarried(part=part, what=_SECRETS[part], reason="secret", why="the archive is not encrypted")
        for part, entities in bare.items()
        if entities != getattr(metadata, part)
    )
    return replace(metadata, **bare, not_carried=(*metadata.not_carried, *lost))


def _emptied(entities: tuple[E, ...] | None, *secrets: str) -> tuple[E, ...] | None:
    if entities is None:
        return None
    return tuple(replace(each, **dict.fromkeys(secrets)) for each in entities)


def _hidden(configs: tuple[C, ...] | None) -> tuple[C, ...] | None:
    if configs is None:
        return None
    return tuple(replace(each, value=None) if is_sensitive(each.name) else each for each in configs)
