"""Records as the registry clients' own serializers write them: backed up, and shown as what they hold."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from kbackup import cli
from kbackup.schemas.protobuf import compiled
from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.secrets import make

Capture = pytest.CaptureFixture[str]

AVRO = """{"type": "record", "name": "Order", "fields": [
  {"name": "item", "type": "string"},
  {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
  {"name": "note", "type": ["null", "string"]}]}"""
JSON = '{"title": "Order", "type": "object", "properties": {"item": {"type": "string"}}}'
PROTO = {
    "shop.proto": """syntax = "proto3"; package shop; import "money.proto";
        message Cart { message Line { string item = 1; Money price = 2; int64 count = 3; } }""",
    "money.proto": 'syntax = "proto3"; package shop; message Money { string currency = 1; int32 cents = 2; }',
}
ORDER = {"item": "pen", "price": Decimal("1.20"), "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "note": None}
ORDER_IN_JSON = {"item": "pen", "price": "1.20", "at": "2026-01-31T12:00:00.000Z", "note": None}
LINE = {"item": "ink", "price": {"currency": "EUR", "cents": 250}, "count": 0}
CONF = {"subject.name.strategy": topic_subject_name_strategy}


@dataclass(frozen=True)
class Shop:
    """`values` by topic are what `kbackup cat` is to show, in order; one partition each."""

    archive: Archive
    registry: ConfluentRegistry
    config: Path
    protos: Path
    values: dict[str, list[Any]]


@pytest.fixture(scope="module")
def shop(
    broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("schemas")
    password = make("the shop's registry password")
    authorization = f"Basic {base64.b64encode(f'me:{password}'.encode()).decode()}"
    for file, text in PROTO.items():
        (folder / file).write_text(text)
    files: FileDescriptorSet = compiled(folder, "shop.proto", "shop.proto")
    cart: Any = message_factory.GetMessages(list(files.file))["shop.Cart"]
    with ConfluentRegistry(authorization=authorization) as registry:
        client = SchemaRegistryClient({"url": registry.url, "basic.auth.user.info": f"me:{password}"})
        values = produce(broker, client, cart.Line)
        archive = new_archive()
        kbackup.backup(archive, *(arg for topic in values for arg in ("--topics", topic)))
        config = folder / "kbackup.toml"
        config.write_text(
            f'{kbackup.config.read_text()}\n[schema_registry]\nurl = "{registry.url}"\n'
            f'user = "me"\npassword = "{password}"\n'
        )
        yield Shop(archive, registry, config, folder, values)


def produce(broker: Broker, client: SchemaRegistryClient, line: Any) -> dict[str, list[Any]]:
    topics = [f"shop-{kind}" for kind in ("avro", "json", "proto", "headers", "plain")]
    for topic in topics:
        broker.create_topic(topic)
    avro, jsons, proto, headers, plain = topics
    producer = Producer(broker.client(log_level=0))

    def send(topic: str, serialize: Any, value: object, key: bytes | None = b"key") -> None:
        carried: list[tuple[str, str | bytes | None]] = [("own", b"1")]
        context = SerializationContext(topic, MessageField.VALUE, carried)
        producer.produce(topic, serialize(value, context), key, headers=carried)

    avro_out = AvroSerializer(client, AVRO, conf=CONF)
    avro_key = AvroSerializer(client, '"long"', conf=CONF)
    send(avro, avro_out, ORDER, avro_key(17, SerializationContext(avro, MessageField.KEY)))
    send(avro, lambda *_: None, None)
    send(avro, lambda *_: b"\0\0\0\x7f\xffunknown", None)
    send(avro, lambda *_: avro_out(ORDER, SerializationContext(avro, MessageField.VALUE))[:-1], None)
    send(jsons, JSONSerializer(JSON, client, conf=CONF), {"item": "\x1b[31mpen"})
    proto_out = ProtobufSerializer(line, client, conf=CONF)
    send(proto, proto_out, line(item="ink", price={"currency": "EUR", "cents": 250}))
    by_header = {**CONF, "schema.id.serializer": header_schema_id_serializer}
    send(headers, AvroSerializer(client, AVRO, conf=by_header), ORDER)
    send(headers, ProtobufSerializer(line, client, conf=by_header), line(item="ink"))
    send(plain, lambda *_: b"plain text", None)
    assert producer.flush(30) == 0
    raw = {"base64": base64.b64encode(b"\0\0\0\x7f\xffunknown").decode()}
    return {
        avro: [ORDER_IN_JSON, None, raw, "cut"],
        jsons: [{"item": "\x1b[31mpen"}],
        proto: [LINE],
        headers: [ORDER_IN_JSON, {"item": "ink", "count": 0}],
        plain: ["plain text"],
    }


def run(shop: Shop, capsys: Capture, *args: str, code: int = 0) -> tuple[str, str]:
    assert cli.main([*args, "-a", shop.archive.url, "--config", str(shop.config)]) == code
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    return out, err


def shown(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_values_are_what_was_serialized(shop: Shop, capsys: Capture) -> None:
    for topic, values in shop.values.items():
        out, err = run(shop, capsys, "cat", topic, "--decode", "value", "--json")
        told = shown(out)
        assert [r["value"] for r in told if values[r["offset"]] != "cut"] == [v for v in values if v != "cut"]
        assert ("2 of 3 values could not be decoded" in err) == (topic == "shop-avro")
        if topic == "shop-plain":
            assert "1 of 1 values name no schema" in err
    out, _ = run(shop, capsys, "cat", "shop-avro", "--decode", "value", "--json")
    cut = shown(out)[3]
    assert base64.b64decode(cut["value"]["base64"])[0] == 0
    assert "not AVRO by its schema" in cut["value_error"]
    assert shown(out)[2]["value_error"] == f"the registry has no schema {0x7FFF}"


def test_keys_and_which_schema_and_nothing_unasked(shop: Shop, capsys: Capture) -> None:
    topic = "shop-avro"
    out, err = run(shop, capsys, "cat", f"{topic}:0:0", "--schema-registry", shop.registry.url, "--json")
    (record,) = shown(out)
    assert (record["key"], record["value"]) == (17, ORDER_IN_JSON)
    assert {record["key_schema"]["type"], record["value_schema"]["type"]} == {"AVRO"}
    assert record["key_schema"]["id"] != record["value_schema"]["id"]
    assert err == ""
    out, err = run(shop, capsys, "cat", f"{topic}:0:1", "--schema-registry", shop.registry.url)
    assert out.split("\t")[2:4] == ["key", "null"]
    assert "1 of 1 keys name no schema" in err
    # a registry in the configuration alone is not asked: an archive is there when registries are not
    asked = len(shop.registry.asked)
    out, _ = run(shop, capsys, "cat", "shop-avro", "--json")
    assert not any("value_schema" in record for record in shown(out))
    assert len(shop.registry.asked) == asked


def test_searching_what_is_decoded(shop: Shop, capsys: Capture) -> None:
    shop.registry.asked.clear()
    expression = '.value.item? == "ink" or (.value.price? == "1.20")'
    out, err = run(shop, capsys, "find", "--jq", expression, "--decode", "value", "--format", r"%t:%o %s\n", "-q")
    found = [line.partition(" ")[0].removeprefix("shop-") for line in out.splitlines()]
    assert found == ["avro:0", "headers:0", "headers:1", "proto:0"]
    assert json.loads(out.splitlines()[3].partition(" ")[2]) == LINE
    assert "2 of 8 values could not be decoded" in err
    assert len(shop.registry.asked) == len(set(shop.registry.asked)), "each schema once"


def test_values_are_decoded_by_schemas_from_files(shop: Shop, capsys: Capture) -> None:
    """Behind a registry's frame or by a header: which schema it was is known here."""
    (shop.protos / "order.avsc").write_text(AVRO)
    (shop.protos / "order.json").write_text(JSON)
    for topic, file, args in (
        ("avro:0:0", "order.avsc", ()),
        ("headers:0:0", "order.avsc", ()),
        ("json:0:0", "order.json", ()),
        ("proto:0:0", "shop.proto", ()),
        ("proto:0:0", "shop.proto", ("--message", "shop.Cart.Line")),
        ("headers:0:1", "shop.proto", ("--message", "Cart.Line")),
    ):
        address = f"shop-{topic}"
        out, err = run(shop, capsys, "cat", address, "--value-schema", str(shop.protos / file), *args, "--json")
        name, _, offset = address.partition(":0:")
        assert shown(out)[0]["value"] == shop.values[name][int(offset)], (address, err)


@pytest.mark.parametrize(
    ("registry", "message"),
    [
        ("http://127.0.0.1:1", "can't be reached"),
        ("{url}/elsewhere", "is no schema registry"),
        ("{url}", "denies access: HTTP status 401"),
    ],
)
def test_a_registry_that_does_not_answer(
    shop: Shop, registry: str, message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbackup.kafka.schema_registry._TRIES_AGAIN", 0)
    url = registry.format(url=shop.registry.url)
    wrong = make("a wrong registry password") if "elsewhere" not in url else None
    more = ["--set", f"schema_registry.password={wrong}"] if wrong else []
    address = "shop-avro"
    assert message in run(shop, capsys, "cat", address, "--schema-registry", url, *more, code=14)[1]
    command = ("find", "--jq", ".value.item", address, "--schema-registry", url, *more)
    assert message in run(shop, capsys, *command, code=14)[1]
