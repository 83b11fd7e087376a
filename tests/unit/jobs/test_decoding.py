"""The decoding of records: which decoder a topic gets."""

from __future__ import annotations

from kbackup.formats.record import Row
from kbackup.jobs.decoding import Decoding
from kbackup.schemas.base import Headers
from kbackup.schemas.decoder import Decoded, Decoder, Made
from kbackup.types import TopicPartition


def test_the_decoder_of_a_topic_is_asked_for_once() -> None:
    asked: list[tuple[str, str]] = []

    def decode(data: bytes, headers: Headers) -> Made:
        return Decoded(len(data), {"type": "AVRO"})

    def by_topic(topic: str, part: str) -> Decoder | None:
        asked.append((topic, part))
        return decode if part == "value" else None

    decoding = Decoding({}, by_topic=by_topic)
    for offset in range(3):
        record = decoding(TopicPartition("orders", 0), Row(offset, 0, 1, b"key", b"value", ()))
        assert (record.key, record.value) == (None, Decoded(5, {"type": "AVRO"}))
    assert asked == [("orders", "key"), ("orders", "value")]
    assert decoding.seen == {"key": 0, "value": 3}
