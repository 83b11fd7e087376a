"""The tables of a restore point's settings; secrets of an encrypted archive are in none."""

from __future__ import annotations

from kbackup.archive.models import Metadata
from kbackup.metadata.entities import (
    Acl,
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    Feature,
    Listener,
    Registration,
    ScramUser,
    not_carried_entry,
)
from kbackup.web.pages.points import settings_tables

HIDDEN = "not-to-be-seen"


METADATA = Metadata(
    captured_at="now",
    cluster_id="c",
    brokers=1,
    topics=(),
    acls=(
        Acl(
            resource="user",
            name="x",
            pattern="literal",
            principal="User:a",
            host="*",
            operation="describe_tokens",
            permission="allow",
        ),
    ),
    scram_users=(
        ScramUser(user="a", mechanism="SCRAM-SHA-256", iterations=4096, stored_key=HIDDEN, server_key=HIDDEN),
    ),
    broker_configs=(
        BrokerConfig(broker=None, name="log.segment.bytes", value="1"),
        BrokerConfig(broker=1, name="ssl.key.password", value=HIDDEN),
    ),
    client_quotas=(ClientQuota(entity={"user": "b o%b", "client-id": None}, quotas={"producer_byte_rate": 3e9}),),
    delegation_tokens=(
        DelegationToken(
            id="t",
            owner="User:a",
            requester="User:r",
            renewers=("User:b",),
            issued_at=0,
            expires_at=1000,
            max_at=2000,
            hmac=HIDDEN,
        ),
    ),
    client_metrics=(ClientMetrics(name="m 1", configs={"interval.ms": "1", "metrics": "x"}),),
    features=(Feature(name="metadata.version", level=30),),
    registrations=(
        Registration(
            id=1, role="broker", listeners=(Listener(name="", host="h", port=1, security_protocol="SSL"),), alive=False
        ),
    ),
    not_carried=(not_carried_entry("group_configs", "denied", "so it is"),),
)


def test_every_kind_has_its_table() -> None:
    tables = {table.title: table for table in settings_tables(METADATA)}
    assert HIDDEN not in repr(tables)
    assert tables["Client quotas"].rows == [("b o%b", "default", "-", "producer_byte_rate=3000000000")]
    assert tables["Delegation tokens"].rows == [("t", "User:a", "User:r", "User:b", "1970-01-01T00:00:01.000Z")]
    assert tables["Client metrics"].rows == [("m 1", "interval.ms=1, metrics=x")]
    assert tables["Features"].rows == [("metadata.version", 30)]
    assert tables["Brokers and controllers"].rows == [(1, "broker", "SSL h:1", "-", "down")]
    assert tables["Configs of brokers"].rows == [("all", "log.segment.bytes", "1"), (1, "ssl.key.password", None)]
    assert (tables["Configs of groups"].rows, tables["Configs of groups"].why) == (None, "so it is")
    assert all(len(row) == len(table.columns) for table in tables.values() for row in table.rows or ())
