"""Which secrets of a cluster a restore point holds: all that were read in an encrypted archive, none in another.

Every metadata document passes here before it is stored. Secrets are the keys and salts of SCRAM credentials, the HMACs
of delegation tokens, and the values of sensitive configs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

from msgspec.structs import replace

from kbackup.archive.models import ArchiveInfo, Metadata
from kbackup.metadata.entities import BrokerConfig, Entity, GroupConfig, NotCarried

SCRAM_SECRETS = "secrets of SCRAM users"
TOKEN_SECRETS = "secrets of delegation tokens"  # noqa: S105 (a name, no secret)
CONFIG_SECRETS = "values of sensitive configs"

_SENSITIVE = re.compile(
    r"(password|passphrase|secret|secret\.key|master\.key|private[._]?key|access[._]?key|api[._]?key|token|credentials?"
    r"|jaas\.config|user\.info|keystore\.key|keystore\.certificate\.chain|truststore\.certificates)$",
    re.IGNORECASE,
)
"""What Kafka keeps as passwords, and how configs of other people's code that hold secrets are called."""

E = TypeVar("E", bound=Entity)


def is_sensitive(config: str) -> bool:
    """Whether a config holds a secret, by its name."""
    return bool(_SENSITIVE.search(config))


def as_archived(metadata: Metadata, info: ArchiveInfo) -> Metadata:
    """Return the document as the archive may hold it: with its secrets only where the archive is encrypted."""
    return metadata if info.encryption is not None else without_secrets(metadata)


def without_secrets(metadata: Metadata) -> Metadata:
    """Return the document with null for every secret, each kind of secret named in `not_carried`."""
    users = _emptied(metadata.scram_users, "salt", "stored_key", "server_key")
    tokens = _emptied(metadata.delegation_tokens, "hmac")
    brokers = _hidden(metadata.broker_configs)
    groups = _hidden(metadata.group_configs)
    changed = {
        SCRAM_SECRETS: users != metadata.scram_users,
        TOKEN_SECRETS: tokens != metadata.delegation_tokens,
        CONFIG_SECRETS: (brokers, groups) != (metadata.broker_configs, metadata.group_configs),
    }
    return replace(
        metadata,
        scram_users=users,
        delegation_tokens=tokens,
        broker_configs=brokers,
        group_configs=groups,
        not_carried=(*metadata.not_carried, *_named(what for what, lost in changed.items() if lost)),
    )


def _emptied(entities: tuple[E, ...] | None, *secrets: str) -> tuple[E, ...] | None:
    if entities is None:
        return None
    return tuple(replace(each, **dict.fromkeys(secrets)) for each in entities)


C = TypeVar("C", BrokerConfig, GroupConfig)


def _hidden(configs: tuple[C, ...] | None) -> tuple[C, ...] | None:
    if configs is None:
        return None
    return tuple(replace(each, value=None) if is_sensitive(each.name) else each for each in configs)


def _named(secrets: Iterable[str]) -> Iterator[NotCarried]:
    for what in secrets:
        yield NotCarried(what=what, reason="secret", why="the archive is not encrypted")
