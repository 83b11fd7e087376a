"""Transforms made of the text of a function's body."""

from __future__ import annotations

from kbackup.jobs.transform import Transform


def a_transform(body: str, file: str = "mask.py") -> Transform:
    """A function `mask` of a batch and its topic, in a file of which workers know the bytes alone."""
    source = f"import pyarrow as pa\nimport pyarrow.compute as pc\n\ndef mask(batch, topic):\n    {body}\n"
    return Transform(file, "mask", source.encode())


EVEN_OFFSETS = "return batch.filter(pc.equal(pc.bit_wise_and(batch.column('offset'), 1), 0))"
NOTHING = "return batch.slice(0, 0)"
