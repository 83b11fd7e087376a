"""A store behind a proxy that takes conditions out of requests is refused, by the kind of write that is not safe."""

from __future__ import annotations

import re

import pytest

from kbackup.archive.run import open_or_create
from kbackup.errors import StoreError
from kbackup.store import Store
from kbackup.store.base import check_conditional_writes
from tests.contract.conftest import S3Location
from tests.contract.proxy import Proxy

CREATE, REPLACE = rb"(?is)()if-none-match: [^\r]*\r\n", rb"(?is)()if-match: [^\r]*\r\n"
IN_PARTS = rb"(?is)(POST [^ ]*uploadId=.*?)if-none-match: [^\r]*\r\n"


@pytest.fixture
def s3_location(request: pytest.FixtureRequest) -> S3Location:
    """One that checks no signatures: they cover the conditions."""
    return S3Location(request.getfixturevalue("moto_server"))


@pytest.mark.parametrize(
    ("dropped", "what"), [(CREATE, "a create"), (REPLACE, "a replace"), (IN_PARTS, "a create in parts")]
)
def test_a_store_that_drops_conditions(dropped: bytes, what: str, proxy: Proxy, through: Store) -> None:
    proxy.dropped = re.compile(dropped)
    for _ in range(3):
        with pytest.raises(StoreError) as caught:
            check_conditional_writes(through, "check")
        assert caught.value.message.endswith(f"ignores the condition of {what}")
    with pytest.raises(StoreError, match="ignores the condition"):
        open_or_create(through)
    assert list(through.list()) == []
