"""The table of metadata records, from the definitions in Kafka's jars: `python -m scripts.dev.metadata_schemas`.

The newest Kafka's definitions hold all that older ones have: Kafka adds versions and keeps the fields. `merged` checks
that for each jar.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kbackup.migrate.metadata_log import codec
from kbackup.migrate.metadata_log.codec import RecordSchema, SchemaField
from scripts.dev.jars import kafka_jars

CONTROL_TYPES = {
    2: "LeaderChangeMessage",
    3: "SnapshotHeaderRecord",
    4: "SnapshotFooterRecord",
    5: "KRaftVersionRecord",
    6: "VotersRecord",
}
Tables = tuple[dict[int, RecordSchema], dict[int, RecordSchema]]
"""Metadata records by apiKey, control records by type."""


def read(jars: Path) -> Tables:
    """Return both tables of the one Kafka whose jars are in a folder."""
    definitions = {d["name"]: d for d in _definitions(jars)}
    records = {d["apiKey"]: _schema(d) for d in definitions.values() if d["type"] == "metadata"}
    control = {number: _schema(definitions[name]) for number, name in CONTROL_TYPES.items()}
    return dict(sorted(records.items())), control


def check_older(newest: Mapping[int, RecordSchema], older: Mapping[int, RecordSchema]) -> None:
    """Raise `ValueError` unless `newest` reads all that an older Kafka writes, and reads it the same way."""
    for number, schema in older.items():
        same = newest[number]
        if (same.name, _until(same.fields, schema.newest)) != (schema.name, schema.fields):
            raise ValueError(f"record {number}, {schema.name}: the newer Kafka changed what older versions hold")


def _until(fields: tuple[SchemaField, ...], version: int) -> tuple[SchemaField, ...]:
    return tuple(
        SchemaField(f.name, f.type, f.since, f.nullable, f.tag, f.default, _until(f.fields, version))
        for f in fields
        if f.since <= version
    )


def _definitions(jars: Path) -> Iterable[dict[str, Any]]:
    for pattern, folder in (("kafka-metadata-*.jar", "metadata"), ("kafka-clients-*.jar", "message")):
        (path,) = jars.glob(pattern)
        with zipfile.ZipFile(path) as jar:
            for name in sorted(jar.namelist()):
                if re.fullmatch(rf"common/{folder}/\w+\.json", name):
                    found = json.loads(re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.M))
                    if folder == "metadata" or found["name"] in CONTROL_TYPES.values():
                        yield found


def _schema(definition: Mapping[str, Any]) -> RecordSchema:
    first, _, last = definition["validVersions"].partition("-")
    if first != "0" or definition["flexibleVersions"] != "0+":
        raise ValueError(f"{definition['name']}: versions that are not flexible, or don't start at 0")
    structs = {s["name"]: s["fields"] for s in definition.get("commonStructs", ())}
    fields = tuple(_field(f, structs) for f in definition["fields"])
    return RecordSchema(definition["name"], int(last or first), fields)


def _field(raw: Mapping[str, Any], structs: Mapping[str, Any]) -> SchemaField:
    array = "[]" if raw["type"].startswith("[]") else ""
    kind = raw["type"].removeprefix("[]")
    fields: tuple[SchemaField, ...] = ()
    if kind[0].isupper():
        fields = tuple(_field(f, structs) for f in raw.get("fields") or structs[kind])
        kind = "struct"
    default: Any = raw.get("default", msgspec.UNSET)
    if default is not msgspec.UNSET:
        default = None if default == "null" else default == "true" if array + kind == "bool" else int(default)
    since = _since(raw["versions"])
    if "tag" in raw and _since(raw["taggedVersions"]) != since:
        raise ValueError(f"{raw['name']}: a field that became tagged later on")
    return SchemaField(
        raw["name"][0].lower() + raw["name"][1:],
        array + kind,
        since,
        _since(raw["nullableVersions"]) if "nullableVersions" in raw else None,
        int(raw["tag"]) if "tag" in raw else None,
        default,
        fields,
    )


def _since(versions: str) -> int:
    if not versions.endswith("+"):
        raise ValueError(f"versions {versions}: a field that a later version doesn't have any more")
    return int(versions[:-1])


def main() -> None:
    """Write both tables as JSON, with one line for each field of a record."""
    metadata, control = (
        ",\n".join(
            f'"{number}": {{"name": "{schema.name}", "newest": {schema.newest}, "fields": ['
            + ",".join("\n  " + json.dumps(msgspec.to_builtins(field)) for field in schema.fields)
            + "]}"
            for number, schema in table.items()
        )
        for table in read(kafka_jars())
    )
    path = Path(codec.__file__).with_name("records.json")
    path.write_text(f'{{"metadata": {{\n{metadata}\n}}, "control": {{\n{control}\n}}}}\n')


if __name__ == "__main__":
    main()
