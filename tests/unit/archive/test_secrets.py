"""Secrets of a cluster go into an encrypted archive alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Metadata
from kbackup.archive.run import begin_writing, open_or_create
from kbackup.archive.secrets import is_sensitive, without_secrets
from kbackup.metadata.entities import BrokerConfig, DelegationToken, GroupConfig, ScramUser, not_carried_entry
from kbackup.store import open_store

HIDDEN = "not-to-be-seen"
FULL = Metadata(
    captured_at="now",
    cluster_id="c",
    brokers=1,
    topics=(),
    scram_users=(
        ScramUser(
            user="alice", mechanism="SCRAM-SHA-256", iterations=4096, salt=HIDDEN, stored_key=HIDDEN, server_key=HIDDEN
        ),
    ),
    delegation_tokens=(
        DelegationToken(
            id="t", owner="User:a", requester="User:a", renewers=(), issued_at=1, expires_at=2, max_at=3, hmac=HIDDEN
        ),
    ),
    broker_configs=(
        BrokerConfig(broker=1, name="ssl.keystore.password", value=HIDDEN),
        BrokerConfig(broker=None, name="log.segment.bytes", value="1"),
    ),
    group_configs=(GroupConfig(group="g", name="x.secret", value=HIDDEN),),
)


def test_without_secrets_the_rest_stays_and_each_kind_is_named() -> None:
    bare = without_secrets(FULL)
    assert HIDDEN not in repr(bare)
    assert [(u.user, u.iterations) for u in bare.scram_users or ()] == [("alice", 4096)]
    assert [t.id for t in bare.delegation_tokens or ()] == ["t"]
    assert bare.broker_configs == (
        BrokerConfig(broker=1, name="ssl.keystore.password", value=None),
        BrokerConfig(broker=None, name="log.segment.bytes", value="1"),
    )
    assert {(n.what, n.reason) for n in bare.not_carried} == {
        ("secrets of SCRAM users", "secret"),
        ("secrets of delegation tokens", "secret"),
        ("values of sensitive broker configs", "secret"),
        ("values of sensitive group configs", "secret"),
    }
    assert without_secrets(bare) == bare


def test_metadata_without_secrets_is_unchanged() -> None:
    plain = Metadata(captured_at="now", cluster_id="c", brokers=1, topics=(), not_carried=(NOT_THERE,))
    assert without_secrets(plain) == plain
    assert without_secrets(replace(plain, scram_users=(), delegation_tokens=())).not_carried == (NOT_THERE,)


NOT_THERE = not_carried_entry("acls", "not there", "so it is")


@pytest.mark.parametrize("key", ["", "env:KBACKUP_TEST_KEY"])
def test_a_document_passes_the_rule_when_it_is_stored(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBACKUP_TEST_KEY", "A" * 43 + "=")
    store = open_store(str(tmp_path / "archive"), key=key, key_class=layout.key_class)
    archive = open_or_create(store)
    with HeldLease(store, "a test", 60) as lease:
        writing = begin_writing(store, lease, "backup")
        ref = writing.put_document(1, layout.METADATA, FULL)
    assert (HIDDEN.encode() in archive.read_document(ref)) == bool(key)
    assert not any(HIDDEN.encode() in f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())


@pytest.mark.parametrize(
    ("name", "sensitive"),
    [
        ("ssl.keystore.password", True),
        ("listener.name.sasl.scram-sha-512.sasl.jaas.config", True),
        ("delegation.token.secret.key", True),
        ("ssl.keystore.key", True),
        ("sasl.oauthbearer.client.credentials.client.secret", True),
        ("delegation.token.max.lifetime.ms", False),
        ("sasl.oauthbearer.token.endpoint.url", False),
        ("ssl.keystore.location", False),
        ("log.cleaner.threads", False),
    ],
)
def test_which_configs_are_sensitive(name: str, sensitive: bool) -> None:
    assert is_sensitive(name) == sensitive
