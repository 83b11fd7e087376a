"""MirrorMaker 2's internal records as JSON, by the names of their topics."""

from __future__ import annotations

from functools import partial
from typing import Any

from kbackup.errors import UndecodableError
from kbackup.kafka.mirror_records.codec import (
    CHECKPOINT,
    HEARTBEAT,
    OFFSET_SYNC,
    RecordFields,
    decode_key,
    decode_value,
)
from kbackup.schemas.base import Headers
from kbackup.schemas.decoder import Decoded, Decoder, Made, Undecoded


def fields_of(topic: str) -> RecordFields | None:
    """Return what the records of an internal topic consist of, whatever the separator in its name; None for any other
    topic."""
    if topic.endswith("internal"):
        if topic.startswith("mm2-offset-syncs"):
            return OFFSET_SYNC
        return CHECKPOINT if "checkpoints" in topic else None
    return HEARTBEAT if topic.endswith("heartbeats") else None


def decoder_of(topic: str, part: str) -> Decoder | None:
    """Return the decoder for the `key` or the `value` of an internal topic's records; None for any other topic."""
    fields = fields_of(topic)
    return partial(_made, fields, part) if fields is not None else None


def _made(record: RecordFields, part: str, data: bytes, headers: Headers) -> Made:
    try:
        value: dict[str, Any] = (decode_key if part == "key" else decode_value)(record, data)
    except UndecodableError as error:
        return Undecoded(error.message)
    return Decoded(value, {"type": "MM2", "record": record.kind})
