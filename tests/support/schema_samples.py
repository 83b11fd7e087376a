"""Records with schemas of three formats, by the serializers and deserializers of Java and Python."""

from __future__ import annotations

import atexit
import base64
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import (
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    dual_schema_id_deserializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from grpc_tools import protoc  # type: ignore[import-untyped]

from scripts.dev.jars import serdes_jars
from scripts.dev.registry import Apicurio
from tests.support.java import Java, compiled
from tests.support.truth import read_topic

Rows = dict[str, list[dict[str, Any]]]
"""Of each topic: `partition`, `offset`, `key` and `value` of its records as plain JSON, bytes in base64, by partition
and offset."""


class Subject(NamedTuple):
    """One version of a subject. `references` names the subjects that it stands on, by the names that its text uses."""

    kind: str
    text: str
    references: Mapping[str, str] = {}


class Part(NamedTuple):
    """A key or a value: `data` fit the last version of `subject`; `message` is the name of a Protobuf type."""

    subject: str
    data: Any
    message: str = ""


class Sample(NamedTuple):
    topic: str
    partition: int
    key: Part | None
    value: Part | None


def _avro(name: str, /, **fields: Any) -> str:
    of = [{"name": field, "type": kind} for field, kind in fields.items()]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": of})


_TREE = {"type": "array", "items": "shop.Order"}
_JSON = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
_MONEY_URI = "http://shop.example/money.json"  # Java goes by the $id, which must be a whole one
_MONEY = {"amount": {"type": "number"}, "currency": {"type": "string"}}

SUBJECTS: Mapping[str, Subject] = {
    "avro-money": Subject("AVRO", _avro("Money", amount="double", currency="string")),
    "avro-key": Subject("AVRO", _avro("OrderKey", id="int")),
    "avro-value": Subject(
        "AVRO",
        _avro(
            "Order",
            id="int",
            price=["null", "shop.Money"],
            picture="bytes",
            tags={"type": "map", "values": "string"},
            state={"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]},
            parts=_TREE,
        ),
        {"shop.Money": "avro-money"},
    ),
    "proto/money.proto": Subject(
        "PROTOBUF", 'syntax = "proto3"; package shop; message Money { double amount = 1; string currency = 2; }'
    ),
    "proto-key": Subject("PROTOBUF", 'syntax = "proto3"; package shop; message Key { int32 id = 1; }'),
    "proto-value": Subject(
        "PROTOBUF",
        """syntax = "proto3"; package shop; import "money.proto";
        message Order { int32 id = 1; .shop.Money price = 2; repeated Order parts = 3; bytes picture = 4; }
        message Event {
            message Sent { string carrier = 1; .shop.Money cost = 2; }
            message Paid { .shop.Money sum = 1; }
        }""",
        {"money.proto": "proto/money.proto"},
    ),
    "json-money": Subject("JSON", json.dumps({**_JSON, "$id": _MONEY_URI, "properties": _MONEY})),
    "json-key": Subject("JSON", json.dumps({**_JSON, "properties": {"id": {"type": "integer"}}})),
    "json-value": Subject(
        "JSON",
        json.dumps(
            {
                **_JSON,
                "required": ["id"],
                "properties": {
                    "id": {"type": "integer"},
                    "price": {"$ref": _MONEY_URI},
                    "parts": {"type": "array", "items": {"$ref": "#"}},
                },
            }
        ),
        {_MONEY_URI: "json-money"},
    ),
    "shop.Customer": Subject("AVRO", _avro("Customer", name="string")),  # by RecordNameStrategy
    "events-shop.Sent": Subject("AVRO", _avro("Sent", carrier="string")),  # by TopicRecordNameStrategy
    "events-shop.Paid": Subject("AVRO", _avro("Paid", sum="shop.Money"), {"shop.Money": "avro-money"}),
}
"""In the order in which a registry takes them."""

FORMATS = {
    "avro": ("AVRO", "AVRO"),
    "proto": ("PROTOBUF", "PROTOBUF"),
    "json": ("JSON", "JSON"),
    "customers-a": ("STRING", "AVRO"),
    "customers-b": ("STRING", "AVRO"),
    "events": ("STRING", "AVRO"),
}
"""Of the keys and values of each topic."""

_SHARED = "shop.Customer"
_EUR = {"amount": 9.75, "currency": "EUR"}
_PICTURE = base64.b64encode(bytes(range(256))).decode()


def formats(prefix: str = "") -> dict[str, tuple[str, str]]:
    """`FORMATS` by the topics' whole names."""
    return {prefix + topic: kinds for topic, kinds in FORMATS.items()}


def samples(prefix: str = "") -> list[Sample]:
    """Records of every format: nested, recursive and referenced types, null keys, tombstones, two topics with one
    subject. `prefix` comes before topics and subjects, but for the one that a record's name alone makes."""
    made: list[Sample] = []

    def add(topic: str, subject: str, key: Any, data: Any, message: str = "") -> None:
        name = subject if subject == _SHARED else prefix + subject
        kind = FORMATS[topic][0]
        known = {"STRING": Part("", key), "PROTOBUF": Part(f"{prefix}proto-key", {"id": key}, "shop.Key")}
        keyed = known.get(kind) or Part(f"{prefix}{topic}-key", {"id": key})
        value = None if data is None else Part(name, data, message)
        made.append(Sample(prefix + topic, len(made) % 2, None if key is None else keyed, value))

    key: Any
    data: Any
    order: Any = {"id": 1, "price": None, "picture": _PICTURE, "tags": {"a": "ä"}, "state": "PAID", "parts": []}
    for key, data in ((1, order), (None, {**order, "price": _EUR, "parts": [order, {**order, "parts": [order]}]})):
        add("avro", "avro-value", key, data)
    add("avro", "avro-value", 3, None)
    for key, data, message in (
        (1, {"id": 1, "picture": _PICTURE, "parts": [{"id": 2, "price": _EUR, "parts": [{"id": 3}]}]}, "Order"),
        (None, {"carrier": "snail", "cost": _EUR}, "Event.Sent"),
        (2, {"sum": _EUR}, "Event.Paid"),
        (3, None, ""),
    ):
        add("proto", "proto-value", key, data, f"shop.{message}")
    for key, data in ((1, {"id": 1, "price": _EUR, "parts": [{"id": 2, "parts": []}]}), (None, {"id": 2}), (3, None)):
        add("json", "json-value", key, data)
    for topic in ("customers-a", "customers-b"):
        add(topic, _SHARED, "k", {"name": topic})
        add(topic, _SHARED, None, {"name": "no key"})
    for key, subject, data in ((None, "Sent", {"carrier": "owl"}), ("k", "Paid", {"sum": _EUR})):
        add("events", f"events-shop.{subject}", key, data)
    return made


def rows_of(written: Iterable[Sample]) -> Rows:
    """What deserializers give of records in topics that were empty."""
    rows: Rows = defaultdict(list)
    for sample in written:
        offset = sum(row["partition"] == sample.partition for row in rows[sample.topic])
        key, value = (None if part is None else part.data for part in (sample.key, sample.value))
        rows[sample.topic].append({"partition": sample.partition, "offset": offset, "key": key, "value": value})
    return _sorted(rows)


def produce_samples(
    bootstrap: str, registry: Apicurio, prefix: str = "", java: bool = False, form: str = ""
) -> list[Sample]:
    """Create the topics, register all schemas, and write `samples` by Python's or Java's serializers. Java's name
    schemas in a `form` of Apicurio's own: contentId, globalId (both in a header), or eightBytes; by default as
    Confluent's do."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(topic, 2, 1) for topic in formats(prefix)]).values():
        created.result(30)
    register(registry.url, prefix)
    written = samples(prefix)
    if java:
        _java_write(bootstrap, registry, written, prefix, form)
    else:
        _python_write(bootstrap, registry.url, written, prefix)
    return written


def register(url: str, prefix: str = "") -> dict[str, int]:
    """Register `SUBJECTS`; return their ids by subject."""
    client = SchemaRegistryClient({"url": url, "timeout": 30})
    return {
        _named(name, prefix): client.register_schema(_named(name, prefix), _schema(name, prefix)) for name in SUBJECTS
    }


def _named(subject: str, prefix: str) -> str:
    return subject if subject == _SHARED else prefix + subject


def _subject(name: str, prefix: str) -> str:
    return name if name in SUBJECTS else name.removeprefix(prefix)


def _schema(name: str, prefix: str) -> Schema:
    kind, text, references = SUBJECTS[name]
    refers = [SchemaReference(refer, _named(subject, prefix), 1) for refer, subject in references.items()]
    return Schema(text, kind, refers)


# Python


def python_read(bootstrap: str, url: str, topics: Mapping[str, tuple[str, str]]) -> Rows:
    """Return the records of `topics` (formats of keys and values by name) by confluent-kafka's deserializers, with the
    registry of this URL. What they can't read they raise."""
    client = SchemaRegistryClient({"url": url, "timeout": 30})
    readers = {
        "AVRO": AvroDeserializer(client),
        "JSON": JSONDeserializer(None, schema_registry_client=client),
        "PROTOBUF": _ProtobufReader(client),
        "STRING": lambda data, context: data.decode(),
    }
    rows: Rows = {topic: [] for topic in topics}
    for topic, kinds in topics.items():
        for partition, records in read_topic(bootstrap, topic).items():
            for record in records:
                row: dict[str, Any] = {"partition": partition, "offset": record.offset}
                for field, kind, data in zip(("key", "value"), kinds, (record.key, record.value), strict=True):
                    context = SerializationContext(topic, MessageField(field), [*record.headers])
                    row[field] = None if data is None else _plain(readers[kind](data, context))
                rows[topic].append(row)
    return _sorted(rows)


class _ProtobufReader:
    """confluent-kafka's deserializer for the types of any schema.

    The class of the message is made from the registry's text by protoc: alone, the deserializer asks for descriptors,
    which Apicurio gives in no form that it reads.
    """

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client

    def __call__(self, data: bytes, context: SerializationContext) -> Any:
        found = SchemaId("PROTOBUF")
        dual_schema_id_deserializer(data, context, found)
        client = self._client
        schema = client.get_schema(found.id) if found.id is not None else client.get_schema_by_guid(str(found.guid))
        files = {_MAIN: schema.schema_str or ""}
        self._collect(schema, files)
        compiled_files = _compile(tuple(files.items()))
        file = next(file for file in compiled_files.file if file.name == _MAIN)
        within, names = list(file.message_type), [file.package] if file.package else []
        for index in found.message_indexes or [0]:
            names.append(within[index].name)
            within = list(within[index].nested_type)
        made = _message_class(compiled_files, ".".join(names))
        return ProtobufDeserializer(made, {"use.deprecated.format": False})(data, context)

    def _collect(self, schema: Schema, files: dict[str, str]) -> None:
        for reference in schema.references or ():
            name, subject, version = str(reference.name), str(reference.subject), int(reference.version or 0)
            if name not in files:
                found = self._client.get_version(subject, version).schema
                files[name] = found.schema_str or ""
                self._collect(found, files)


def _python_write(bootstrap: str, url: str, written: Sequence[Sample], prefix: str) -> None:
    client, producer = _LatestRegistry({"url": url}), Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for sample in written:
        key, value = (
            None if part is None else _python_bytes(client, part, SerializationContext(sample.topic, field), prefix)
            for part, field in ((sample.key, MessageField.KEY), (sample.value, MessageField.VALUE))
        )
        producer.produce(sample.topic, partition=sample.partition, key=key, value=value)
    assert producer.flush(30) == 0


def _python_bytes(client: SchemaRegistryClient, part: Part, context: SerializationContext, prefix: str) -> bytes:
    if not part.subject:
        return str(part.data).encode()
    name = _subject(part.subject, prefix)
    options = {"auto.register.schemas": False, "subject.name.strategy": lambda context, record: part.subject}
    made: bytes
    match SUBJECTS[name].kind:
        case "AVRO":
            made = AvroSerializer(client, _schema(name, prefix), conf=options)(_avro_data(part), context)
        case "JSON":
            made = JSONSerializer(_schema(name, prefix), client, conf=options)(part.data, context)
        case _:
            message = json_format.ParseDict(part.data, _message_class(_files(name), part.message)())
            options |= {"use.deprecated.format": False}
            options["reference.subject.name.strategy"] = lambda context, reference: f"{prefix}proto/{reference.name}"
            made = ProtobufSerializer(type(message), client, options)(message, context)
    return made


class _LatestRegistry(SchemaRegistryClient):
    """Finds the last version of a subject for any schema.

    Python's Protobuf serializer would register a descriptor in base64, which Apicurio's Java can't read.
    """

    def lookup_schema(self, subject_name: str, *schema: Any, **options: Any) -> RegisteredSchema:
        return self.get_latest_version(subject_name)


def _avro_data(part: Part) -> Any:
    """The same with bytes where the schema has bytes."""

    def converted(data: Any) -> Any:
        if isinstance(data, dict):
            return {k: base64.b64decode(v) if k == "picture" else converted(v) for k, v in data.items()}
        return [converted(item) for item in data] if isinstance(data, list) else data

    return converted(part.data)


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return json_format.MessageToDict(value, preserving_proto_field_name=True)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _sorted(rows: Rows) -> Rows:
    return {topic: sorted(each, key=lambda row: (row["partition"], row["offset"])) for topic, each in rows.items()}


# Protobuf

_MAIN = "main.proto"


@cache
def _compile(files: tuple[tuple[str, str], ...]) -> descriptor_pb2.FileDescriptorSet:
    """What protoc makes of these texts by name, `_MAIN` among them."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files:
            (Path(folder) / name).write_text(text)
        out = Path(folder) / "descriptors"
        known = Path(protoc.__file__).parent / "_proto"
        paths = (f"-I{folder}", f"-I{known}", "--include_imports", f"--descriptor_set_out={out}")
        assert protoc.main(["protoc", *paths, _MAIN]) == 0, files
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _files(subject: str) -> descriptor_pb2.FileDescriptorSet:
    """Of one of `SUBJECTS`."""
    _, text, references = SUBJECTS[subject]
    return _compile(((_MAIN, text), *((name, SUBJECTS[other].text) for name, other in references.items())))


def _message_class(files: descriptor_pb2.FileDescriptorSet, name: str) -> type[Message]:
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


# Java


@cache
def _java() -> Java:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(compiled("SchemaRecords.java", jars=(serdes_jars,)))


def java_read(bootstrap: str, registry: Apicurio, topics: Mapping[str, tuple[str, str]]) -> Rows:
    """Return the records of `topics` (formats of keys and values by name) by Apicurio's Java deserializers. What they
    can't read fails an assertion. Confluent's own are not in the public repository."""
    asked = [f"{topic}={','.join(kinds)}" for topic, kinds in topics.items()]
    rows: Rows = {topic: [] for topic in topics}
    for line in _java().run("SchemaRecords", "read", bootstrap, registry.own_url, *asked).splitlines():
        row = json.loads(line)
        rows[row.pop("topic")].append(row)
    return _sorted(rows)


def _java_write(bootstrap: str, registry: Apicurio, written: Sequence[Sample], prefix: str, form: str) -> None:
    lines = [
        json.dumps(
            {
                "topic": sample.topic,
                "partition": sample.partition,
                "key": _java_part(sample.key, prefix),
                "value": _java_part(sample.value, prefix),
            }
        )
        for sample in written
    ]
    ways = [form] if form else []
    _java().run("SchemaRecords", "write", bootstrap, registry.own_url, *ways, stdin="\n".join(lines))


def _java_part(part: Part | None, prefix: str) -> dict[str, Any] | None:
    if part is None:
        return None
    if not part.subject:
        return {"format": "STRING", "subject": "", "data": part.data}
    name = _subject(part.subject, prefix)
    made = {"format": SUBJECTS[name].kind, "subject": part.subject, "data": part.data}
    if made["format"] == "PROTOBUF":
        made |= {"files": base64.b64encode(_files(name).SerializeToString()).decode(), "message": part.message}
    if made["format"] == "AVRO":
        made["schemas"] = [*(SUBJECTS[other].text for other in SUBJECTS[name].references.values()), SUBJECTS[name].text]
    return made
