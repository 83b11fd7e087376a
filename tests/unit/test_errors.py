"""Errors survive what stands between an executor and the operator."""

from __future__ import annotations

import pickle

import pytest

from kbackup.archive.segments.writer import SegmentTakenError
from kbackup.errors import CorruptError, KbackupError, UnreachableError, from_text


def test_an_error_survives_pickling_whole() -> None:
    error = pickle.loads(pickle.dumps(CorruptError("file x at byte 3: cut", "run verify")))
    assert isinstance(error, CorruptError)
    assert (error.message, error.hint, error.exit_code) == ("file x at byte 3: cut", "run verify", 13)


def test_an_error_is_found_in_a_traceback_with_its_class() -> None:
    marker = UnreachableError('no `answer`: "x"', "wait").marker()
    text = f"Traceback\n  ...\nRuntimeError: {marker}\n\tat org.apache"
    found = from_text(text)
    assert type(found) is UnreachableError
    assert (found.message, found.hint) == ('no `answer`: "x"', "wait")


def test_another_modules_error_arrives_as_the_class_it_derives_from() -> None:
    found = from_text(SegmentTakenError("topics/t/x_records", 4).marker())
    assert type(found) is KbackupError
    assert "topics/t/x_records" in found.message


@pytest.mark.parametrize("text", ["", "java.lang.NullPointerException"])
def test_a_text_without_one_gives_none(text: str) -> None:
    assert from_text(text) is None
