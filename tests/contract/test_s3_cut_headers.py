"""Cut the answers of S3 servers within their headers: kbackup asks again, as after a lost answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

import pytest
from awscrt.checksums import crc64nvme

from kbackup.cli.common.logs import configure_logging
from kbackup.errors import UnreachableError
from kbackup.store import Store
from tests.contract.conftest import PART, S3Location, data_of, upload
from tests.contract.proxy import Proxy

DATA = data_of(1234)
LARGE = data_of(PART + 1)
Check = Callable[[Store], None]


def fill(store: Store) -> None:
    into = bytearray(len(DATA))
    assert sum(map(len, store.fill("key", 0, memoryview(into)))) == len(DATA)
    assert into == DATA


def writes(key: str, write: Callable[[Store], str]) -> Check:
    def check(store: Store) -> None:
        store.delete(["new"])
        etag = write(store)
        assert store.get_with_etag(key) == (DATA, etag)

    return check


def uploads(store: Store) -> None:
    upload(store, "large", LARGE)
    assert store.get("large") == LARGE
    store.delete(["large"])


def delete(store: Store) -> None:
    store.put("gone", b"")
    assert store.delete(["gone"]) == []
    assert "gone" not in {item.key for item in store.list()}


def equal(ask: Callable[[Store], object], expected: object) -> Check:
    def check(store: Store) -> None:
        assert ask(store) == expected

    return check


CHECKS: dict[str, tuple[str, Check]] = {
    "get": ("^GET", equal(lambda store: store.get("key"), DATA)),
    "get_empty": ("^GET", equal(lambda store: store.get("empty"), b"")),
    "get_range": ("^GET", equal(lambda store: store.get_range("key", 100, 1000), DATA[100:1100])),
    "fill": ("^GET", fill),
    "list": ("^GET", equal(lambda store: [i.key for i in store.list()], ["empty", "folder/a", "key"])),
    "list_dirs": ("^GET", equal(lambda store: list(store.list_dirs()), ["folder"])),
    "stat": ("^HEAD", equal(lambda store: store.stat("key").size, len(DATA))),
    "checksum": ("^HEAD", equal(lambda store: store.checksum("key"), crc64nvme(DATA))),
    "put": ("^PUT", writes("key", lambda store: store.put("key", DATA))),
    "put_new": ("^PUT", writes("new", lambda store: store.put_new("new", DATA))),
    "replace": ("^PUT", writes("key", lambda store: store.replace("key", DATA, store.stat("key").etag))),
    "delete": ("^POST", delete),
    "upload_create": ("^POST .*uploads", uploads),
    "upload_part": ("^PUT .*partNumber=1", uploads),
    "upload_commit": ("^POST .*uploadId", uploads),
}


def cuts_in(answer: bytes) -> Iterator[int]:
    """Yield a number of bytes for a cut in the middle of each header's value, and for one behind the length."""
    ends = list(accumulate(map(len, answer.splitlines(keepends=True)), initial=0))
    for start, end in pairwise(ends):
        value = answer.find(b": ", start, end)
        yield (value + 2 + end) // 2 if value > 0 else (start + end) // 2
        if answer[start:end].lower().startswith((b"http", b"content-length")):
            yield end


@pytest.fixture(params=["moto", "minio"])
def s3_location(request: pytest.FixtureRequest) -> S3Location:
    """Not versitygw: it sends the date first, so no header shows that those behind it are whole."""
    return S3Location(request.getfixturevalue(f"{request.param}_server"))


def put_objects(store: Store) -> None:
    for key, data in (("key", DATA), ("empty", b""), ("folder/a", b"1")):
        store.put(key, data)


@pytest.fixture
def filled(through: Store) -> Store:
    put_objects(through)
    return through


@pytest.mark.parametrize("name", CHECKS)
def test_an_answer_cut_in_any_header_is_asked_for_again(filled: Store, proxy: Proxy, name: str) -> None:
    request, check = CHECKS[name]
    if name == "checksum" and filled.checksum("key") is None:
        check = equal(lambda store: store.checksum("key"), None)  # moto keeps none
    before = len(proxy.answers)
    check(filled)
    method = request.partition(" ")[0][1:]
    asked = [i for i, line in enumerate(proxy.requests[before:]) if line.startswith(method)]
    assert asked, f"{name} sent no {method}"
    for after in cuts_in(proxy.answers[before + asked[0]]):
        proxy.cut_answers(request, after)
        check(filled)
        assert not proxy.answers_to_cut, f"no answer was cut after {after} bytes"


def test_a_server_that_cuts_every_answer_is_unreachable(s3_location: S3Location, proxy: Proxy) -> None:
    store = s3_location.opened(endpoint_url=proxy.url, max_attempts=2)
    put_objects(s3_location.store())
    for name in ("get", "get_range", "fill", "list", "list_dirs", "stat", "delete", "upload_create"):
        request, check = CHECKS[name]
        proxy.cut_answers(request, *[40] * 100)
        with pytest.raises(UnreachableError):
            check(store)
    proxy.cut_answers("")


def test_no_traceback_is_printed_of_a_cut_header(
    filled: Store, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging()
    proxy.cut_answers("^GET", 40)
    assert filled.get("key") == DATA
    assert not proxy.answers_to_cut
    assert capsys.readouterr().err == ""
