"""Addresses of archived topics, partitions and records."""

from __future__ import annotations

import pytest

from kbackup.cli.common.arguments import parse_address, parse_partition
from kbackup.config.windows import TopicAddress
from kbackup.errors import UsageError
from tests.support.archive_commands import Said, run

pytestmark = pytest.mark.exhaustive(keep=3)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a.b-c_1", TopicAddress("a.b-c_1")),
        ("orders/", TopicAddress("orders")),
        ("orders:0", TopicAddress("orders", 0)),
        ("orders/0", TopicAddress("orders", 0)),
        ("orders/0/", TopicAddress("orders", 0)),
        ("a.b-c_1:2:3", TopicAddress("a.b-c_1", 2, 3, 4, one=True)),
        ("orders/2/3", TopicAddress("orders", 2, 3, 4, one=True)),
        ("t:0:-9", TopicAddress("t", 0, None, 9)),
        ("t/0:4-", TopicAddress("t", 0, 4)),
    ],
)
def test_addresses(text: str, address: TopicAddress) -> None:
    assert parse_address(text) == address
    if not address.ranged:
        assert parse_partition(text) == address


def test_texts_that_are_not_addresses() -> None:
    assert parse_partition("/") is None
    for text in ("", "t:", "t:1:", "t:1:2:3", "t\n", "t:\u0661", "t:1:2-1", "/t", "t//1"):
        with pytest.raises(UsageError):
            parse_address(text)


def test_colons_and_slashes_are_the_same_everywhere(root: str, capsys: Said) -> None:
    for command in (["ls"], ["cat"], ["find", "1"]):
        with_colon, with_slash = (run(capsys, *command, f"orders{sign}0", "-a", root) for sign in ":/")
        assert with_colon
        assert with_colon == with_slash
