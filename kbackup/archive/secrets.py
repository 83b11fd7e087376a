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
    if info.encryption is None:
        return without_secrets(metadata)
    return metadata


def without_secrets(metadata: Metadata) -> Metadata:
    """Return the document with null for every secret, each kind of secret named in `not_carried`."""
    bare: dict[MetadataPartName, tuple[Entity, ...] | None] = {
        "scram_users": _emptied(metadata.scram_users, "salt", "stored_key", "server_key"),
        "delegation_tokens": _emptied(metadata.delegation_tokens, "hmac"),
        "broker_configs": _hidden(metadata.broker_configs),
        "group_configs": _hidden(metadata.group_configs),
    }
    not_carried = list(metadata.not_carried)
    for part, entities in bare.items():
        if entities != getattr(metadata, part):
            secrets = _SECRETS[part]
            not_carried.append(NotCarried(part=part, what=secrets, reason="secret", why="the archive is not encrypted"))
    return replace(metadata, **bare, not_carried=tuple(not_carried))


def _emptied(entities: tuple[E, ...] | None, *secrets: str) -> tuple[E, ...] | None:
    """Return `entities` with null for their members `secrets`; None if they were not captured."""
    if entities is None:
        return None
    nothing = dict.fromkeys(secrets)
    return tuple(replace(entity, **nothing) for entity in entities)


def _hidden(configs: tuple[C, ...] | None) -> tuple[C, ...] | None:
    """Return `configs` with null for the value of each sensitive one; None if they were not captured."""
    if configs is None:
        return None
    hidden: list[C] = []
    for config in configs:
        hidden.append(replace(config, value=None) if is_sensitive(config.name) else config)
    return tuple(hidden)
