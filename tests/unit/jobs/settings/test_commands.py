"""The commands of Kafka's tools that messages about refused settings end with."""

from __future__ import annotations

from typing import Any

import pytest

from kbackup.jobs.settings.plan import ConfigChange, QuotaChange, acl_command, config_command, quota_command
from kbackup.metadata.entities import Acl

CONFIGS = "kafka-configs.sh --bootstrap-server h:1 --alter "


@pytest.mark.parametrize(
    ("value", "change"),
    [("1", "--add-config a=1"), ("x,y", "--add-config 'a=[x,y]'"), (None, "--delete-config a")],
)
def test_a_default_of_all_brokers(value: str | None, change: str) -> None:
    config = ConfigChange(kind="broker", owner="", name="a", before=None, after=value, of_all=True)
    assert config_command("h:1", config) == f"{CONFIGS}--entity-type brokers --entity-default {change}"


@pytest.mark.parametrize(
    ("kind", "entity"), [("broker", "brokers"), ("group", "groups"), ("client metrics", "client-metrics")]
)
def test_a_config_of_one_owner(kind: Any, entity: str) -> None:
    config = ConfigChange(kind=kind, owner="my one", name="a", before=None, after="1")
    options = f"--entity-type {entity} --entity-name 'my one' --add-config a=1"
    assert config_command("h:1", config) == CONFIGS + options


@pytest.mark.parametrize(
    ("value", "change"),
    [(1048576.0, "--add-config r=1048576"), (0.5, "--add-config r=0.5"), (None, "--delete-config r")],
)
def test_a_quota(value: float | None, change: str) -> None:
    quota = QuotaChange(entity={"user": "alice", "client-id": None}, name="r", before=None, after=value)
    entity = "--entity-type users --entity-name alice --entity-type clients --entity-default"
    assert quota_command("h:1", quota) == f"{CONFIGS}{entity} {change}"


@pytest.mark.parametrize(
    ("resource", "option"),
    [
        ("topic", "--topic name"),
        ("cluster", "--cluster"),
        ("transactional_id", "--transactional-id name"),
        ("user", "--user-principal name"),
    ],
)
def test_an_acl(resource: str, option: str) -> None:
    acl = Acl(
        resource=resource, name="name", pattern="prefixed", principal="User:a", host="*",
        operation="describe_configs", permission="deny",
    )  # fmt: skip
    assert acl_command("h:1", acl, "--add") == (
        "kafka-acls.sh --bootstrap-server h:1 --add --deny-principal User:a --deny-host '*' "
        f"--operation DescribeConfigs {option} --resource-pattern-type prefixed"
    )
