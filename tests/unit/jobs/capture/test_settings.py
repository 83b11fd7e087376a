"""A restore point records the settings that a cluster reports, and those that it withholds."""

from __future__ import annotations

from typing import Any

import pytest

from kbackup.jobs.capture import NEVER, settings_warnings
from kbackup.kafka.security_types import AclRule, Credential, Setting, Untold
from kbackup.metadata.entities import BrokerConfig, ClientQuota, GroupConfig, ScramUser
from tests.support.cluster_answers import READ, ClusterAnswers, Session, captured


def test_everything_that_is_told() -> None:
    answers = ClusterAnswers(
        users_answer=[Credential("a", "SCRAM-SHA-512", 4096)],
        session=Session(default_answer=[Setting("", "log.retention.ms", "1")]),
        configs_answer=[
            Setting("", "log.retention.ms", "of an old look"),
            Setting("12", "ssl.keystore.password", None),
        ],
        group_configs_answer=[Setting("billing", "consumer.session.timeout.ms", "45000")],
    )
    metadata = captured(answers)
    assert [tuple(getattr(a, f) for f in AclRule._fields) for a in metadata.acls or ()] == [READ]
    assert metadata.scram_users == (ScramUser(user="a", mechanism="SCRAM-SHA-512", iterations=4096),)
    assert metadata.broker_configs == (
        BrokerConfig(broker=None, name="log.retention.ms", value="1"),
        BrokerConfig(broker=12, name="ssl.keystore.password", value=None),
    )
    assert metadata.group_configs == (
        GroupConfig(group="billing", name="consumer.session.timeout.ms", value="45000"),
    )
    assert metadata.not_carried == NEVER
    assert settings_warnings(metadata) == []


def test_a_cluster_without_authorizer_has_no_acls_and_that_is_no_news() -> None:
    found = captured(ClusterAnswers(acls_answer=Untold("not there", "no authorizer")))
    assert found.acls == ()
    assert [(n.what, n.reason) for n in found.not_carried if n not in NEVER] == [("ACLs", "not there")]
    assert settings_warnings(found) == []


def test_denied_settings_are_one_warning() -> None:
    no = Untold("denied", "it takes more")
    metadata = captured(ClusterAnswers(acls_answer=no, users_answer=no, configs_answer=no))
    assert (metadata.acls, metadata.scram_users, metadata.broker_configs, metadata.group_configs) == (
        None,
        None,
        None,
        (),
    )
    assert settings_warnings(metadata) == [
        "not in this restore point, since its user may not describe them: ACLs, SCRAM users, broker configs; "
        "to see which rights it lacks: kbackup check"
    ]


def test_failures_are_reported_and_unsupported_settings_are_not() -> None:
    metadata = captured(
        ClusterAnswers(
            users_answer=Untold("failed", "timed out"), group_configs_answer=Untold("not supported", "old")
        )
    )
    assert settings_warnings(metadata) == ["SCRAM users are not in this restore point: timed out"]
    assert metadata.group_configs is None


def test_acls_that_the_client_library_does_not_know_are_named() -> None:
    strange = ["allow unknown for User:a from * on unknown x (literal)"]
    no = Untold("not supported", "no connection")
    found = captured(ClusterAnswers(acls_answer=([READ], strange), session=no))
    assert "ACL: allow unknown for User:a from * on unknown x (literal)" in {
        n.what for n in found.not_carried
    }


ASKED_BY_PROTOCOL = {
    "client quotas",
    "delegation tokens",
    "client metrics",
    "features",
    "registrations",
}


@pytest.mark.parametrize("reason", ["not supported", "failed"])
def test_without_a_connection_for_admin_requests_the_rest_is_told(reason: Any) -> None:
    no = Untold(reason, "no connection")
    metadata = captured(ClusterAnswers(session=no, configs_answer=[Setting("", "log.retention.ms", "1")]))
    assert {n.what for n in metadata.not_carried if n not in NEVER} == ASKED_BY_PROTOCOL
    assert (metadata.client_quotas, metadata.delegation_tokens, metadata.features) == (None, None, None)
    assert metadata.broker_configs == (BrokerConfig(broker=None, name="log.retention.ms", value="1"),)
    assert len(settings_warnings(metadata)) == (reason == "failed")
    assert {*metadata.sources} == {"topics", "acls", "scram_users", "broker_configs", "group_configs"}


def test_answers_of_the_protocol_are_captured() -> None:
    quota = ClientQuota(entity={"user": None}, quotas={"producer_byte_rate": 1.0})
    on_user = AclRule("user", "b o%b", "literal", "User:a", "*", "create_tokens", "allow")
    session = Session(
        quotas_answer=[quota],
        tokens_answer=Untold("not there", "tokens are disabled"),
        acls_answer=([READ, on_user], []),
    )
    metadata = captured(ClusterAnswers(acls_answer=([READ], ["allow unknown"]), session=session))
    assert (metadata.client_quotas, metadata.delegation_tokens) == ((quota,), ())
    assert [(acl.resource, acl.name) for acl in metadata.acls or ()] == [
        ("topic", "orders"),
        ("user", "b o%b"),
    ]
    assert [(n.what, n.reason) for n in metadata.not_carried if n not in NEVER] == [
        ("delegation tokens", "not there")
    ]
    assert {*metadata.sources.values()} == {"brokers"}
    assert {"client_quotas", "delegation_tokens"} <= {*metadata.sources}
