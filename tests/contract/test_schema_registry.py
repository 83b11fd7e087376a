"""A schema registry over HTTP: what it is asked for, and how each way of not answering is told."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbackup.errors import UndecodableError, UnreachableError, UsageError
from kbackup.kafka.schema_registry import SchemaRegistry
from kbackup.schemas.base import RegistryOptions, Schema
from kbackup.schemas.decoder import codec_of
from scripts.dev.secured import Authority
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.secrets import make, watch


@pytest.fixture
def running() -> Iterator[ConfluentRegistry]:
    with ConfluentRegistry() as registry:
        yield registry


def ask(registry: ConfluentRegistry, schema_id: int | str = 1, **options: str) -> Schema:
    return SchemaRegistry(RegistryOptions(url=registry.url, **options)).schema(schema_id)


def test_schemas_with_all_that_they_stand_on(running: ConfluentRegistry) -> None:
    running.register("deep", {"schema": "deepest"})
    running.register("money/eu", {"schema": "money", "references": [{"name": "deep", "subject": "deep", "version": 1}]})
    both = [{"name": "money", "subject": "money/eu", "version": 1}, {"name": "deep", "subject": "deep", "version": 1}]
    answer = running.register("order", {"schema": "order", "schemaType": "PROTOBUF", "references": both})
    client = SchemaRegistry(RegistryOptions(url=running.url + "/"))
    due = client.schema(3)
    assert (due.kind, due.text, due.name) == ("PROTOBUF", "order", "schema 3")
    assert [r for r in due.references if r[0] in ("deep", "money")] == [("deep", "deepest"), ("money", "money")]
    asked = len(running.asked)
    assert client.schema(3) == due
    assert len(running.asked) == asked == 3
    assert client.schema(answer["guid"]) == due._replace(name=f"schema {answer['guid']}")
    assert client.schema(1) == Schema("AVRO", "deepest", (), "schema 1")


def test_unregistered_confluent_imports_are_decoded(running: ConfluentRegistry) -> None:
    """Connect's converter writes these imports, and nobody registers them."""
    text = """syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
        message Price { confluent.type.Decimal amount = 1 [(confluent.field_meta).doc = "in EUR"]; }"""
    running.register("price", {"schema": text, "schemaType": "PROTOBUF"})
    found = codec_of(ask(running)).decode(b"\x0a\x05\x0a\x01\x78\x18\x02")
    assert found == {"amount": {"value": "eA==", "precision": 0, "scale": 2}}


def test_references_mean_the_context_that_they_are_in(running: ConfluentRegistry) -> None:
    running.put(":.eu:deep", 1, 1, {"schema": "deep in eu"})
    running.put("deep", 1, 1, {"schema": "deep"})
    refers = {"name": "deep", "subject": "deep", "version": 1}
    running.put(":.eu:money", 1, 2, {"schema": "money", "references": [refers]})
    running.put("order", 1, 3, {"schema": "order", "references": [refers | {"name": "m", "subject": ":.eu:money"}]})
    assert ask(running, 3).references == (("deep", "deep in eu"), ("m", "money"))


def test_a_guid_means_the_contexts_that_have_it(running: ConfluentRegistry) -> None:
    running.put("other", 1, 1, {"schema": "other"})
    guid = running.put(":.eu:money", 1, 1, {"schema": "money"}).guid
    assert SchemaRegistry(RegistryOptions(url=running.url)).places(guid) == [(":.eu:money", 1)]


def test_references_in_a_circle_end(running: ConfluentRegistry) -> None:
    for n, other in ((1, 2), (2, 1)):
        refers = [{"name": f"s{other}", "subject": f"s{other}", "version": 1}]
        running.put(f"s{n}", 1, n, {"schema": f"text {n}", "references": refers})
    assert dict(ask(running).references) == {"s1": "text 1", "s2": "text 2"}


def test_missing_and_unsupported_schemas_are_undecodable(running: ConfluentRegistry) -> None:
    with pytest.raises(UndecodableError, match="the registry has no schema 7"):
        ask(running, 7)
    running.put("a", 1, 1, {"schema": "x", "references": [{"name": "b", "subject": "b", "version": 1}]})
    with pytest.raises(UndecodableError, match="the registry has no b version 1, which others refer to"):
        ask(running)
    running.register("c", {"schema": "x", "schemaType": "THRIFT"})
    with pytest.raises(UndecodableError, match="schema 2 is of type THRIFT"):
        ask(running, 2)


def test_a_registry_is_asked_with_a_password_or_a_token(running: ConfluentRegistry) -> None:
    password, token = make("a registry's password"), make("a registry's token")
    running.register("a", {"schema": "x"})
    for authorization, options in (
        (f"Basic {base64.b64encode(f'me:{password}'.encode()).decode()}", {"user": "me", "password": password}),
        (f"Bearer {token}", {"token": token}),
    ):
        running.authorization = authorization
        assert ask(running, **options).text == "x"
        with pytest.raises(UnreachableError, match=f"{running.url} denies access: HTTP status 401") as denied:
            ask(running, user="me", password=make("a wrong password"))
        watch.look_at("an error", str(denied.value))
        watch.look_at("options", repr(RegistryOptions(url=running.url, **options)))


def test_a_registry_that_fails_is_asked_once_more_and_named(
    running: ConfluentRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbackup.kafka.schema_registry._TRIES_AGAIN", 1)
    running.failures = [503] * 9
    with pytest.raises(UnreachableError, match=r"fails: the store is away \(HTTP status 503\)"):
        ask(running)
    assert len(running.asked) == 2


def test_answers_of_other_servers_are_refused(running: ConfluentRegistry) -> None:
    with pytest.raises(UnreachableError, match="is no schema registry"):
        SchemaRegistry(RegistryOptions(url=f"{running.url}/elsewhere")).schema(1)


def test_one_that_is_not_there(running: ConfluentRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.kafka.schema_registry._TRIES_AGAIN", 0)
    running.register("a", {"schema": "x"})
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:1 can't be reached: "):
        SchemaRegistry(RegistryOptions(url="http://127.0.0.1:1")).schema(1)
    several = SchemaRegistry(RegistryOptions(url=f"http://127.0.0.1:1,{running.url}"))
    assert several.schema(1).text == "x"


def test_a_registry_is_trusted_by_the_given_certificates_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.kafka.schema_registry._TRIES_AGAIN", 0)
    authority = Authority()
    (tmp_path / "ca.pem").write_text(authority.certificate)
    pair = authority.issue("registry")
    (tmp_path / "own.pem").write_text(pair.certificate)
    (tmp_path / "key.pem").write_text(pair.key)
    with ConfluentRegistry(certificate=(tmp_path / "own.pem", tmp_path / "key.pem")) as running:
        running.register("a", {"schema": "x"})
        assert ask(running, ca_bundle=str(tmp_path / "ca.pem")).text == "x"
        with pytest.raises(UnreachableError, match=r"can't be reached: .*CERTIFICATE_VERIFY_FAILED"):
            ask(running)
    for bundle in ("gone.pem", "key.pem"):
        with pytest.raises(UsageError, match="certificates can't be used"):
            SchemaRegistry(RegistryOptions(url="https://127.0.0.1:1", ca_bundle=str(tmp_path / bundle)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://me:word@here"}, "holds credentials"),
        ({"url": "here:8081"}, "no URL of a schema registry"),
        ({"url": "http://a,ftp://b"}, "no URL of a schema registry"),
        ({"url": "http://a", "user": "me"}, "only work together"),
        ({"url": "http://a", "user": "me", "password": "x", "token": "y"}, "a user or a token"),
    ],
)
def test_options_that_can_not_be_used(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SchemaRegistry(RegistryOptions(**options))


def test_lists_in_parts_are_read_whole(running: ConfluentRegistry) -> None:
    for n in range(7):
        for version in range(5):
            running.register(f"s{n}", {"schema": f'"{n} {version}"'})
    client = SchemaRegistry(RegistryOptions(url=running.url))
    for page in (2, 3, 7, 100):
        running.page = page
        assert client.subjects() == [f"s{n}" for n in range(7)]
        assert client.versions("s3") == [1, 2, 3, 4, 5]
        assert client.places(16) == [("s3", 1)]
