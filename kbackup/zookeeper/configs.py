"""Read the settings below /config: quotas of clients, SCRAM credentials, configs of brokers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from kbackup.metadata.encoder import is_encrypted
from kbackup.metadata.entities import BrokerConfig, ClientQuota, QuotaEntity, ScramUser
from kbackup.zookeeper.collect import Collector
from kbackup.zookeeper.decode import configs, entity_name, name_of, strange
from kbackup.zookeeper.tree import last

_USERS = "/config/users"
_SCRAM = "SCRAM-SHA-"
_CREDENTIAL = re.compile(
    r"salt=([A-Za-z0-9+/=]+),stored_key=([A-Za-z0-9+/=]+),server_key=([A-Za-z0-9+/=]+),iterations=(\d{1,9})"
)


def parse_scram_users(collector: Collector) -> tuple[ScramUser, ...] | None:
    return collector.below("scram_users", _USERS, _credentials)


def parse_quotas(collector: Collector) -> tuple[ClientQuota, ...] | None:
    parts = (
        collector.below("client_quotas", _USERS, _user_quotas),
        collector.below("client_quotas", _USERS, _user_client_quotas, levels=3),
        collector.below("client_quotas", "/config/clients", _client_quotas),
        collector.below("client_quotas", "/config/ips", _ip_quotas),
    )
    whole = [part for part in parts if part is not None]
    return tuple(quota for part in whole for quota in part) if len(whole) == len(parts) else None


def parse_broker_configs(collector: Collector) -> tuple[BrokerConfig, ...] | None:
    """A sensitive value is encrypted with a key that only the brokers have: it becomes null."""
    return collector.below("broker_configs", "/config/brokers", _broker_configs)


def _credentials(path: str, data: bytes) -> Iterator[ScramUser]:
    for mechanism, value in configs(path, data).items():
        if not mechanism.startswith(_SCRAM):
            continue
        credential = _CREDENTIAL.fullmatch(value)
        if credential is None:
            raise strange(path, f"has a credential for {mechanism} of an unknown form")
        salt, stored_key, server_key, iterations = credential.groups()
        yield ScramUser(
            user=name_of(path, last(path)),
            mechanism=mechanism,
            iterations=int(iterations),
            salt=salt,
            stored_key=stored_key,
            server_key=server_key,
        )


def _user_quotas(path: str, data: bytes) -> Iterator[ClientQuota]:
    return _quotas(path, data, {"user": entity_name(path, last(path))})


def _user_client_quotas(path: str, data: bytes) -> Iterator[ClientQuota]:
    """/config/users/U/clients/C"""
    *_, user, _clients, client = path.split("/")
    return _quotas(path, data, {"user": entity_name(path, user), "client-id": entity_name(path, client)})


def _client_quotas(path: str, data: bytes) -> Iterator[ClientQuota]:
    return _quotas(path, data, {"client-id": entity_name(path, last(path))})


def _ip_quotas(path: str, data: bytes) -> Iterator[ClientQuota]:
    return _quotas(path, data, {"ip": entity_name(path, last(path))})


def _quotas(path: str, data: bytes, entity: QuotaEntity) -> Iterator[ClientQuota]:
    """Yield the quota of a znode; none where it holds credentials alone."""
    quotas = {
        name: _number(path, name, value)
        for name, value in configs(path, data).items()
        if not name.startswith(_SCRAM)
    }
    if quotas:
        yield ClientQuota(entity=entity, quotas=quotas)


def _number(path: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise strange(path, f"has a {name} that is no number")
    return number


def _broker_configs(path: str, data: bytes) -> Iterator[BrokerConfig]:
    owner = last(path)
    if owner != "<default>" and not re.fullmatch(r"\d{1,10}", owner):
        raise strange(path, "is not named by the id of a broker")
    broker = None if owner == "<default>" else int(owner)
    for name, value in configs(path, data).items():
        yield BrokerConfig(broker=broker, name=name, value=None if is_encrypted(value) else value)
