"""Records as the registry clients' own serializers write them: backed up, and shown as what they hold."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from kbackup import cli
from kbackup.schemas.protobuf import compiled
from scripts.dev.kafka import Broker
from tests.integration.conftest import Archive, Kbackup
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.secrets import make
from tests.support.truth import read_topic

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
BY_HEADER = {**CONF, "schema.id.deserializer": dual_schema_id_deserializer}


@dataclass(frozen=True)
class Shop:
    """`values` by topic are what `kbackup cat` is to show, in order; one partition each."""

    archive: Archive
    registry: ConfluentRegistry
    config: Path
    protos: Path
    values: dict[str, list[Any]]
    client: SchemaRegistryClient
    line: Any
    login: dict[str, str]


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
        config = folder / "kbackup.toml"
        config.write_text(
            f'{kbackup.config.read_text()}\n[schema_registry]\nurl = "{registry.url}"\n'
            f'user = "me"\npassword = "{password}"\n'
        )
        kbackup.backup(archive, *(arg for topic in values for arg in ("--topics", topic)))
        login = {"url": registry.url, "user": "me", "password": password}
        yield Shop(archive, registry, config, folder, values, client, cart.Line, login)


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


MASKS = """
from kbackup.masking import fixed, hashed

SECRET = "0123456789abcdef"

def mask(batch, schemas):
    batch = hashed(batch, "value.item", SECRET, schemas)
    return fixed(batch, "value.price.cents", 1, schemas)

def mask_items(batch, schemas):
    return hashed(batch, "value.item", SECRET, schemas)
"""


@pytest.fixture(scope="module")
def with_schemas(shop: Shop, kbackup: Kbackup, new_archive: Callable[[], Archive]) -> Archive:
    """An archive of the same topics that has their schemas."""
    archive = new_archive()
    arguments = [arg for topic in shop.values for arg in ("--topics", topic)]
    for key, value in shop.login.items():
        arguments += ["--set", f"schema_registry.{key}={value}"]
    kbackup.backup(archive, *arguments)
    return archive


def test_masked_records_are_read_by_the_deserializers_of_clients(
    shop: Shop, with_schemas: Archive, broker: Broker, kbackup: Kbackup, tmp_path: Path
) -> None:
    """Of each format, with the schema named before the data and in a header. The registry is not asked for masks."""
    file = tmp_path / "mask.py"
    file.write_text(MASKS)
    topics = ["shop-json", "shop-proto", "shop-headers"]
    names = [part for topic in topics for part in ("--map", f"{topic}=masked-{topic}")]
    masks = ["--transform", f"{file}:mask_items", *(part for topic in topics for part in ("-t", topic))]
    asked = len(shop.registry.asked)
    report = kbackup.restore(with_schemas, *names, *masks, "--no-groups", "--schemas", "none", "--restore-id", "masks")
    assert (report["records"], report["transform"]["left_out"]) == (4, {})
    same = kbackup.run("verify", with_schemas.url, "--against", "target", "--restore-id", "masks", *masks[:2])
    assert (same["findings"], same["same"]) == ([], 4)
    assert len(shop.registry.asked) == asked
    client = shop.client
    avro = AvroDeserializer(client, conf=BY_HEADER)
    of_line = {**CONF, "use.deprecated.format": False}
    protobuf = ProtobufDeserializer(shop.line, of_line, client)
    by_header = ProtobufDeserializer(shop.line, {**of_line, **BY_HEADER}, client)
    jsons = JSONDeserializer(JSON, schema_registry_client=client)
    read = {topic: restored_values(broker, f"masked-{topic}") for topic in topics}
    pen, ink = digest("pen"), digest("ink")
    value, context = read["shop-headers"][0]
    assert avro(value, context) == ORDER | {"item": pen}
    value, context = read["shop-headers"][1]
    assert by_header(value, context).item == ink
    value, context = read["shop-proto"][0]
    line = protobuf(value, context)
    assert (line.item, line.price.currency, line.price.cents) == (ink, "EUR", 250)
    value, context = read["shop-json"][0]
    assert jsons(value, context) == {"item": digest("\x1b[31mpen")}


def test_a_record_that_cant_be_decoded_is_never_let_through_a_mask(
    with_schemas: Archive, broker: Broker, kbackup: Kbackup, tmp_path: Path
) -> None:
    file = tmp_path / "mask.py"
    file.write_text(MASKS)
    args = ["-t", "shop-avro", "--map", "shop-avro=unmasked", "--no-groups", "--schemas", "none"]
    refused = kbackup.restore(with_schemas, *args, "--transform", f"{file}:mask_items", code=2)
    message = refused["error"]["message"]
    assert "for the records of shop-avro-0 from offset 0 on: the value at offset 2 begins like one" in message
    assert message.endswith(f"the restore point has no schema {0x7FFF}")
    assert restored_values(broker, "unmasked") == []
    args += ["--skip", "shop-avro:0:2-3"]
    refused = kbackup.restore(with_schemas, *args, "--transform", f"{file}:mask_items", code=2)
    assert "the value at offset 3 (schema " in refused["error"]["message"]
    assert "not AVRO by its schema" in refused["error"]["message"]
    args += ["--skip", "shop-avro:0:3-4"]
    refused = kbackup.restore(with_schemas, *args, "--transform", f"{file}:mask", code=2)
    assert "price in the value at offset 0 (schema " in refused["error"]["message"]
    assert "is of type bytes, though a path goes on in it" in refused["error"]["message"]


def restored_values(broker: Broker, topic: str) -> list[tuple[bytes | None, SerializationContext]]:
    """Return the values of a topic of one partition in order, with what their deserializer is told."""
    values: list[tuple[bytes | None, SerializationContext]] = []
    for record in chain(*read_topic(broker.bootstrap, topic).values()):
        headers: list[tuple[str, str | bytes | None]] = list(record.headers or ())
        values.append((record.value, SerializationContext(topic, MessageField.VALUE, headers)))
    return values


def digest(text: str) -> str:
    return hmac.new(b"0123456789abcdef", text.encode(), hashlib.sha256).hexdigest()


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
