"""The user's function that records go through: how it is loaded, called and held to what it was given."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.read import read_segment
from kbackup.errors import RefusedError, UsageError
from kbackup.formats.record import rows
from kbackup.jobs.restore.same_offsets.plan import MeasureLogs
from kbackup.jobs.transform import Transform
from kbackup.spark.workers import check_protection
from kbackup.types import RecordBlock, TopicPartition
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain
from tests.support.record_blocks import encoded, plain
from tests.support.schema_archive import NIGHTS, ORDER, SchemaArchive, avro, framed

TP = TopicPartition("orders", 3)

Make = Callable[[str], Transform]

HEAD = "import pyarrow as pa\nimport pyarrow.compute as pc\n\n"
"""Three lines, so that the function begins at the fourth."""


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return the transform of a function's body, of parameters `batch` and `topic`."""

    def of(body: str) -> Transform:
        file = tmp_path / "mask.py"
        file.write_text(f"{HEAD}def mask(batch, topic):\n    {body}\n")
        return Transform.read(f"{file}:mask")

    return of


@pytest.fixture
def block() -> RecordBlock:
    return encoded(
        plain(4, key=b"a", value=b"one", headers=[("h", b"1"), ("h", None)]),
        plain(5, key=None, value=None),
        plain(9, key=b"c", value=b"nine", kind=-2, timestamp=None),
    )


def test_records_that_nothing_was_done_to_are_the_same_block(make: Make, block: RecordBlock) -> None:
    assert make("return batch")(TP, block) is block


def test_a_batch_that_was_made_anew_has_the_same_bytes(make: Make, block: RecordBlock) -> None:
    made = make("return pa.RecordBatch.from_arrays(batch.columns, schema=batch.schema)")(TP, block)
    assert made.data.tobytes() == block.data.tobytes()
    assert made.offsets.tolist() == [4, 5, 9]


def test_keys_values_and_headers_may_change(make: Make, block: RecordBlock) -> None:
    transform = make(
        "return batch.set_column(4, 'value', pa.array([b'x'] * len(batch), pa.large_binary()))"
        ".set_column(3, 'key', pa.nulls(len(batch), pa.large_binary()))"
    )
    made = list(rows(transform(TP, block)))
    assert [(row.key, row.value) for row in made] == [(None, b"x")] * 3
    assert [(row.offset, row.timestamp_type, row.timestamp) for row in made] == [
        (row.offset, row.timestamp_type, row.timestamp) for row in rows(block)
    ]
    assert made[0].headers == ((b"h", b"1"), (b"h", None))


def test_records_may_be_left_out(make: Make, block: RecordBlock) -> None:
    made = make("return batch.filter(pc.is_valid(batch.column('key')))")(TP, block)
    assert made.offsets.tolist() == [4, 9]
    assert made.offsets.flags.writeable, "kernels refuse Arrow's own memory"
    assert len(make("return batch.slice(0, 0)")(TP, block)) == 0


def test_the_function_learns_the_topic_if_it_asks_for_it(make: Make, tmp_path: Path, block: RecordBlock) -> None:
    assert len(make("return batch if topic == 'orders' else None")(TP, block)) == 3
    file = tmp_path / "alone.py"
    file.write_text("def mask(batch):\n    return batch.slice(1)\n")
    assert Transform.read(f"{file}:mask")(TP, block).offsets.tolist() == [5, 9]


def test_a_worker_needs_no_file(make: Make, tmp_path: Path, block: RecordBlock) -> None:
    transform = make("return batch.slice(2)")
    sent = pickle.dumps(transform)
    (tmp_path / "mask.py").unlink()
    assert pickle.loads(sent)(TP, block).offsets.tolist() == [9]


def test_classes_of_the_file_find_their_module(tmp_path: Path, block: RecordBlock) -> None:
    file = tmp_path / "classes.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Kept:\n"
        "    rows: int\n"
        "def mask(batch):\n"
        "    return batch.slice(0, Kept(1).rows)\n"
    )
    assert Transform.read(f"{file}:mask")(TP, block).offsets.tolist() == [4]


def test_an_error_of_the_function_names_the_records_and_the_line(make: Make, block: RecordBlock) -> None:
    transform = make("wrong = len(batch)\n    raise KeyError('name')")
    with pytest.raises(UsageError) as raised:
        transform(TP, block)
    assert raised.value.message == (
        "transform mask.py:mask failed at line 6, for the records of orders-3 from offset 4 on: KeyError: 'name'"
    )
    assert raised.value.hint
    assert raised.value.__cause__ is None
    assert "Traceback" not in str(raised.value)


def test_an_error_inside_a_library_names_the_line_of_the_file(make: Make, block: RecordBlock) -> None:
    with pytest.raises(UsageError, match="failed at line 5, for the records of orders-3 from offset 4 on: KeyError"):
        make("return batch.select(['nothing'])")(TP, block)


def test_a_function_that_ends_the_process_is_an_error(make: Make, block: RecordBlock) -> None:
    with pytest.raises(UsageError, match=r"failed at line 5.*: SystemExit: 3"):
        make("raise SystemExit(3)")(TP, block)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", "for the records of orders-3 from offset 4 on a batch which is nothing, not a RecordBatch"),
        ("return pa.Table.from_batches([batch])", "which is a Table, not a RecordBatch"),
        ("return batch.select(['offset', 'key'])", "with the columns offset, key"),
        (
            "return batch.set_column(4, 'value', batch.column('value').cast(pa.binary()))",
            "with value as binary, not large_binary",
        ),
        (
            "return batch.set_column(0, 'offset', pa.array([4, None, 9], pa.int64()))",
            "for orders-3 at offset 4 a batch with a null offset",
        ),
        ("return batch.take(pa.array([1, 0]))", "for orders-3 at offset 4 a batch whose offsets do not rise"),
        ("return batch.take(pa.array([0, 0]))", "for orders-3 at offset 4 a batch whose offsets do not rise"),
        (
            "return batch.set_column(0, 'offset', pa.array([4, 6, 9], pa.int64()))",
            "for orders-3 at offset 6 a batch with an offset that was not given",
        ),
        (
            "return batch.set_column(0, 'offset', pa.array([4, 5, 10], pa.int64()))",
            "for orders-3 at offset 10 a batch with an offset that was not given",
        ),
        (
            "return batch.set_column(2, 'timestamp', pa.array([1_600_000_000_000, 7, None], pa.int64()))",
            "for orders-3 at offset 5 a batch with another timestamp",
        ),
        (
            "return batch.set_column(1, 'timestamp_type', pa.array([0, 0, -1], pa.int8()))",
            "for orders-3 at offset 9 a batch with another timestamp_type",
        ),
        (
            "return batch.set_column(1, 'timestamp_type', pa.array([0, None, -2], pa.int8()))",
            "for orders-3 at offset 5 a batch with a null timestamp_type",
        ),
        (
            "return batch.set_column(4, 'value', pa.array([b'v', b'x' * 2_000_000, b'v'], pa.large_binary()))",
            "for orders-3 at offset 5 a batch in which a record has more than 1048576 bytes",
        ),
    ],
)
def test_what_can_not_be_restored_is_refused(make: Make, block: RecordBlock, body: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as raised:
        make(body)(TP, block)
    assert raised.value.message.startswith("transform mask.py:mask returned for ")
    assert raised.value.hint


def test_columns_may_be_declared_to_have_nulls_if_they_have_none(make: Make, block: RecordBlock) -> None:
    made = make("return pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)")(TP, block)
    assert np.array_equal(made.data, block.data)


def test_a_header_that_is_not_utf8_names_the_records(make: Make) -> None:
    odd = encoded(plain(7, headers=[("h", b"1")]))
    data = odd.data.copy()
    data[odd.data.tobytes().rindex(b"h")] = 0xFF
    broken = RecordBlock(data, odd.offsets, odd.positions, odd.lengths, None, None, odd.largest)
    with pytest.raises(
        UsageError, match=r"can't take the records of orders-3 from offset 7 to 7: .*not UTF-8"
    ) as error:
        make("return batch")(TP, broken)
    assert "--skip orders:3:7-8" in error.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mask.py", "'mask.py' names no function of a file"),
        ("/no/mask.py:", "names no function"),
        ("/no/mask.py:a.b", "names no function"),
        ("/no/mask.py:mask", "/no/mask.py can't be read: No such file or directory"),
    ],
)
def test_a_function_has_to_be_named_by_file_and_name(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        Transform.read(text)
    assert "FILE.py:FUNCTION" in raised.value.hint


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1\ndef mask(batch:\n", "can't be loaded: SyntaxError: .* at line 2"),
        ("import pyarrow\nimport no_such_library\n", "can't be loaded: ModuleNotFoundError: .* at line 2"),
        ("def other(batch):\n    return batch\n", "mask.py has no function mask"),
        ("mask = 3\n", "mask.py has no function mask"),
        ("def mask():\n    return None\n", "function mask does not take a batch alone"),
        ("def mask(batch, paths):\n    return batch\n", "function mask does not take a batch alone"),
    ],
)
def test_a_file_that_can_not_be_used_is_refused_before_anything_is_done(
    tmp_path: Path, source: str, words: str
) -> None:
    file = tmp_path / "mask.py"
    file.write_text(source)
    with pytest.raises(UsageError, match=words):
        Transform.read(f"{file}:mask")


def test_a_transform_is_known_by_its_bytes_and_its_function(make: Make) -> None:
    one, same, other = make("return batch"), make("return batch"), make("return batch.slice(1)")
    assert one.ref == same.ref
    assert one.ref.name == "mask.py:mask"
    assert one.ref.sha256 != other.ref.sha256


def test_types_of_arrow_that_the_batch_came_with_are_those_of_records(make: Make, block: RecordBlock) -> None:
    transform = make("assert batch.schema.names[0] == 'offset', batch.schema\n    return batch")
    assert transform(TP, block) is block
    assert pa.large_binary() in [field.type for field in make("return batch")._decoded(TP, block).schema]


def test_a_cluster_that_others_can_listen_to_gets_no_function(make: Make) -> None:
    context = SimpleNamespace(master="spark://far:7077", getConf=dict)
    spark: Any = SimpleNamespace(sparkContext=context)
    store = MemoryStore()
    check_protection(spark, MeasureLogs(store))
    with pytest.raises(RefusedError, match="could read the secrets of this job"):
        check_protection(spark, MeasureLogs(store, make("return batch")))


# Schemas, for functions that mask by them.

BY_SCHEMAS = """
from kbackup.masking import fixed

def mask(batch, topic, schemas):
    return fixed(batch, {"orders": "value.item", "carts": "value.price.currency"}[topic], "x", schemas)
"""


@pytest.fixture
def archived() -> Archive:
    """An archive of one restore point with records of two topics, and their schemas."""
    store = MemoryStore()
    records, versions = NIGHTS[0]
    SchemaArchive(store).night(records, versions)
    return open_archive(store)


def archived_block(archive: Archive, topic: str) -> RecordBlock:
    point = archive.restore_point("latest")
    (segment,) = archive.segments(point, [each for each in point.topics if each.name == topic])
    (block,) = read_segment(archive.store, segment)
    return block


def test_a_function_gets_the_schemas_of_its_topic(archived: Archive) -> None:
    asked = Transform("mask.py", "mask", BY_SCHEMAS.encode())
    sent: Transform = pickle.loads(pickle.dumps(asked.with_schemas(archived, "latest")))
    masked = rows(sent(TopicPartition("orders", 0), archived_block(archived, "orders")))
    assert [row.value for row in masked] == [framed(2, avro(ORDER, {"item": "x", "count": 3})), None]
    (cart,) = rows(sent(TopicPartition("carts", 0), archived_block(archived, "carts")))
    assert cart.value == framed(5, b"\0\x0a\x03ink\x12\x06\x0a\x01x\x10\xfa\x01")


def test_schemas_are_no_part_of_what_a_function_does(archived: Archive) -> None:
    asked = Transform("mask.py", "mask", BY_SCHEMAS.encode())
    bound = asked.with_schemas(archived, "latest")
    assert bound == asked
    assert bound.ref == asked.ref
    alone = Transform("mask.py", "mask", b"def mask(batch): return batch")
    assert alone.with_schemas(None, "latest") is alone, "what takes no schemas needs none"


def test_a_record_that_does_not_fit_its_schema_is_named(archived: Archive) -> None:
    bound = Transform("mask.py", "mask", BY_SCHEMAS.encode()).with_schemas(archived, "latest")
    cut = encoded(plain(7, value=framed(2, b"\x06pen\x06")), plain(8, value=framed(2, b"\x06pe")))
    with pytest.raises(UsageError) as raised:
        bound(TP, cut)
    assert raised.value.message.startswith(
        "transform mask.py:mask failed at line 5, for the records of orders-3 from offset 7 on: "
        "the value at offset 8 (schema 2): not AVRO by its schema"
    )
    assert raised.value.hint.startswith("mask all of it by the path 'key' or 'value', or leave such records out; mend")


def test_a_function_that_takes_schemas_is_refused_where_there_are_none(archived: Archive) -> None:
    asked = Transform("mask.py", "mask", BY_SCHEMAS.encode())
    without = MemoryStore()
    SchemaArchive(without).night({"plain": [Plain(b"key", b"text")]}, None)
    for archive in (None, open_archive(without)):
        with pytest.raises(UsageError, match=r"mask.py:mask takes schemas, and the restore point has none") as raised:
            asked.with_schemas(archive, "latest")
        assert "schema_registry.url" in raised.value.hint
