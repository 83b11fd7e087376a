"""The codec of a schema."""

from __future__ import annotations

from kbackup.schemas.base import Codec, Schema, missing, of_others


def codec_of(schema: Schema) -> Codec:
    """Return the codec of a schema. `UndecodableError` for an invalid schema, `UsageError` where its library is not
    installed."""
    try:
        if schema.kind == "AVRO":
            from kbackup.schemas.avro import AvroCodec

            with of_others(schema.name, "Avro schema"):
                return AvroCodec(schema)
        if schema.kind == "PROTOBUF":
            from kbackup.schemas.protobuf import protobuf_codec

            with of_others(schema.name, "Protobuf schema"):
                return protobuf_codec(schema)
        from kbackup.schemas.json_schema import JsonCodec

        with of_others(schema.name, "JSON Schema"):
            return JsonCodec(schema)
    except ImportError as error:
        raise missing(error) from error
