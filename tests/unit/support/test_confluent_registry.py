"""The registry of tests, asked by Confluent's own client."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.schema_registry import (
    Metadata,
    MetadataProperties,
    Rule,
    RuleKind,
    RuleMode,
    RuleSet,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
)

from tests.support.confluent_registry import ConfluentRegistry
from tests.support.secrets import make

A, B = Schema('"int"', "AVRO"), Schema('"long"', "AVRO")


@pytest.fixture
def registry() -> Iterator[ConfluentRegistry]:
    with ConfluentRegistry() as running:
        yield running


@pytest.fixture
def client(registry: ConfluentRegistry) -> SchemaRegistryClient:
    return _client(registry)


def _client(registry: ConfluentRegistry, **properties: object) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url, "max.retries": 0, **properties})


def _import(client: SchemaRegistryClient, subject: str, schema: Schema, schema_id: int, version: int) -> int:
    body = {**schema.to_dict(), "id": schema_id, "version": version}
    return int(client._rest_client.post(f"subjects/{subject}/versions", body=body)["id"])


def _code(call: Callable[..., object], *arguments: object, **options: object) -> int:
    with pytest.raises(SchemaRegistryError) as caught:
        call(*arguments, **options)
    return int(caught.value.error_code)


def test_ids_versions_and_guids(client: SchemaRegistryClient) -> None:
    first, second = client.register_schema_full_response("a", A), client.register_schema_full_response("a", B)
    assert [(each.schema_id, each.version) for each in (first, second)] == [(1, 1), (2, 2)]
    assert client.register_schema("b", A) == 1
    assert client.register_schema(":.other:c", A) == 1
    assert client.register_schema("b", Schema('"int"', "JSON")) == 3
    assert client.get_subjects() == [":.other:c", "a", "b"]
    assert client.get_subjects(subject_prefix=":.other:") == [":.other:c"]
    assert client.get_subjects(subject_prefix="") == ["a", "b"]
    assert sorted(client.get_contexts()) == [".", ".other"]
    assert [(each.subject, each.version) for each in client.get_schema_versions(1)] == [("a", 1), ("b", 1)]
    assert client.get_schema_by_guid(str(first.guid)).schema_str == A.schema_str
    assert client.get_schema(3).schema_type == "JSON"
    assert client.lookup_schema("a", B).version == client.get_latest_version("a").version == 2
    assert [_code(client.get_schema, 9), _code(client.get_version, "x", 1), _code(client.get_version, "a", 9)] == [
        *(40403, 40401, 40402)
    ]


def test_references_metadata_and_rules(client: SchemaRegistryClient) -> None:
    rule = Rule("r", None, RuleKind.CONDITION, RuleMode.WRITE, "CEL", None, None, "true", None, None, False)
    whole = Schema(
        '"a"', "AVRO", [SchemaReference("n", "base", 1)],
        metadata=Metadata(None, MetadataProperties({"owner": "me"}), None), rule_set=RuleSet(None, [rule]),
    )  # fmt: skip
    assert _code(client.register_schema, "top", whole) == 42201
    client.register_schema("base", A)
    assert client.register_schema("top", whole) == 2
    for found in (client.get_version("top", 1).schema, client.get_schema(2, "top")):
        assert (found.schema_str, found.references) == (whole.schema_str, whole.references)
        told = found.to_dict()
        assert told["metadata"]["properties"] == {"owner": "me"}
        assert [(each["name"], each["expr"]) for each in told["ruleSet"]["domainRules"]] == [("r", "true")]
    assert client.register_schema("top", Schema('"a"', "AVRO", whole.references)) == 3
    assert client.get_referenced_by("base", 1) == [2, 3]
    assert _code(client.delete_subject, "base") == 42206


def test_a_version_is_deleted_softly_and_then_for_good(client: SchemaRegistryClient) -> None:
    client.register_schema("a", A)
    client.register_schema("a", B)
    assert _code(client.delete_version, "a", 1, permanent=True) == 40407
    assert client.delete_version("a", 1) == 1
    assert (client.get_versions("a"), client.get_version("a", 1, deleted=True).schema_id) == ([2], 1)
    assert _code(client.delete_subject, "a", permanent=True) == 40405
    assert client.delete_subject("a") == [1, 2]
    assert (client.get_subjects(), client.get_subjects(deleted=True)) == ([], ["a"])
    assert client.get_schema(1).schema_str == A.schema_str
    assert client.delete_subject("a", permanent=True) == [1, 2]
    client.clear_caches()
    assert (client.get_subjects(deleted=True), _code(client.get_schema, 1)) == ([], 40403)
    assert client.register_schema("a", A) == 3


def test_schemas_are_imported_under_their_ids_in_mode_import(client: SchemaRegistryClient) -> None:
    assert client.get_global_mode() == "READWRITE"
    assert _code(_import, client, "a", A, 4660, 7) == 42205
    client.register_schema("gone", A)
    client.delete_subject("gone")
    client.update_global_mode("IMPORT")
    assert client.get_subjects(deleted=True) == []
    assert _import(client, "a", A, 4660, 7) == _import(client, "a", A, 4660, 7) == 4660
    assert (client.get_versions("a"), client.get_schema(4660).schema_str) == ([7], A.schema_str)
    assert _code(client.register_schema, "a", B) == 42205
    assert _code(_import, client, "b", B, 4660, 1) == 42205
    client.update_global_mode("READWRITE")
    assert client.register_schema("a", B) == 4661
    assert _code(client.update_mode, "a", "IMPORT") == _code(client.update_global_mode, "IMPORT") == 42205
    assert client.update_mode("a", "IMPORT", force=True) == client.get_mode("a") == "IMPORT"
    client.delete_mode("a")
    assert _code(client.get_mode, "a") == 40409
    client.update_mode("a", "READONLY")
    assert _code(client.register_schema, "a", Schema('"string"', "AVRO")) == 42205


def test_compatibility_is_set_per_subject_over_a_default(client: SchemaRegistryClient) -> None:
    assert client.get_compatibility() == "BACKWARD"
    assert _code(client.get_compatibility, "a") == 40408
    client.set_compatibility("a", "FULL_TRANSITIVE")
    client.set_compatibility(level="NONE")
    assert (client.get_compatibility("a"), client.get_compatibility()) == ("FULL_TRANSITIVE", "NONE")
    client.delete_config("a")
    assert _code(client.get_compatibility, "a") == 40408
    assert _code(client.set_compatibility, level="SOME") == 42203


def test_the_registry_answers_those_who_log_in(registry: ConfluentRegistry) -> None:
    password, token = make("a registry's password"), make("a registry's token")
    basic = {"basic.auth.user.info": f"me:{password}"}
    bearer = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": token}
    for header, properties in (
        (f"Basic {base64.b64encode(f'me:{password}'.encode()).decode()}", basic),
        (f"Bearer {token}", {**bearer, "bearer.auth.logical.cluster": "", "bearer.auth.identity.pool.id": ""}),
    ):
        registry.authorization = header
        assert _client(registry, **properties).get_subjects() == []
        assert _code(_client(registry).get_subjects) == 40101


def test_the_registry_fails_as_it_is_told_to(registry: ConfluentRegistry, client: SchemaRegistryClient) -> None:
    registry.failures = [500, 429]
    assert [_code(client.get_subjects), _code(client.get_subjects), client.get_subjects()] == [50001, 50001, []]
    registry.lost = 1
    with pytest.raises(Exception, match="disconnected"):
        client.register_schema("a", A)
    assert client.get_subjects() == ["a"]
    for name, other in (("x", "y"), ("y", "x")):
        content = {"schema": name, "references": [{"name": other, "subject": other, "version": 1}]}
        registry.put(name, 1, ord(name), content)
    assert client.get_referenced_by("x", 1) == [ord("y")]
    registry.huge = 5 << 20
    assert client.get_subjects() == ["a", "x", "y"]
    registry.huge, registry.page = 0, 2
    assert [client.get_subjects(), client.get_subjects(offset=2)] == [["a", "x"], ["y"]]
