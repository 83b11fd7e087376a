"""Check errors and retries of stores in Google Cloud Storage when the bucket or the network fails."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.errors import (
    AlreadyExistsError,
    DeniedError,
    OutcomeUnknownError,
    PreconditionError,
    StoreError,
    UnreachableError,
)
from kbackup.store import Store, open_store
from kbackup.store.base import CHUNK
from kbackup.store.gcs import GcsOptions
from scripts.dev.gcs import FakeGcs
from tests.contract.conftest import PART, GcsLocation, data_of, upload
from tests.contract.proxy import Proxy
from tests.contract.test_s3_cut_headers import CHECKS, cuts_in, put_objects
from tests.contract.test_s3_faults import Read, asks_of, filled, ranged

LARGE = 2 * PART + 1


class GcsProxy(Proxy):
    """A proxy before fake-gcs-server that answers for the state of unfinished uploads as Google does: the server takes
    that question for the end of the upload."""

    def own_answer(self, request: bytes) -> bytes | None:
        if not re.search(rb"\r\nContent-Range: bytes \*/", request):
            return super().own_answer(request)
        kept = [a for r, a in zip(self.answered, self.answers, strict=True) if r.startswith("PUT")]
        if kept and not kept[-1].startswith(b"HTTP/1.1 308"):
            return None  # the upload has ended
        found = re.findall(rb"\r\nRange: (\S+)\r\n", b"".join(kept))
        headers = [b"Range: " + found[-1]] if found else []
        headers += [b"Date: Thu, 26 Nov 2026 08:00:00 GMT", b"Content-Length: 0", b"Connection: close"]
        return b"HTTP/1.1 308 Resume Incomplete\r\n" + b"".join(header + b"\r\n" for header in headers) + b"\r\n"


pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.fixture
def location(fakegcs_server: FakeGcs) -> GcsLocation:
    return GcsLocation(fakegcs_server)


@pytest.fixture
def proxy(location: GcsLocation) -> Iterator[GcsProxy]:
    with GcsProxy(location.server.endpoint_url) as running:
        yield running
    assert not running.answers_to_lose, "an answer that was to be lost arrived"


@pytest.fixture
def through(location: GcsLocation, proxy: Proxy) -> Store:
    return location.opened(endpoint_url=proxy.url)


def test_a_missing_bucket_is_unreachable(location: GcsLocation) -> None:
    for n in range(len(asks_of(location.store()))):
        store = open_store("gs://no-such-bucket-here/prefix", {"gcs": location.options()})
        with pytest.raises(UnreachableError, match=r"no-such-bucket-here.*does not exist"):
            asks_of(store)[n]()


def test_a_closed_port_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    store = open_store("gs://bucket/p", {"gcs": GcsOptions(endpoint_url=f"http://127.0.0.1:{port}", max_attempts=2)})
    for ask in asks_of(store):
        with pytest.raises(UnreachableError, match=str(port)):
            ask()


@pytest.mark.parametrize("write", ["put", "put_new", "replace"])
@pytest.mark.parametrize("status", [0, 503])
def test_a_lost_answer_to_a_write_that_took_effect(through: Store, proxy: Proxy, write: str, status: int) -> None:
    first = (through.put("key", b"1"),) if write == "replace" else ()
    if status:
        proxy.answer_instead("^POST", status, handled=(True,))
    else:
        proxy.lose_answers("^POST", 1)
    etag = getattr(through, write)("key", b"ours", *first)
    assert through.get_with_etag("key") == (b"ours", etag)


@pytest.mark.parametrize(("write", "error"), [("put_new", AlreadyExistsError), ("replace", PreconditionError)])
def test_a_lost_answer_about_a_refused_write(through: Store, proxy: Proxy, write: str, error: type[StoreError]) -> None:
    older = through.put("key", b"older")
    through.put("key", b"theirs")
    proxy.lose_answers("^POST", 1)
    with pytest.raises(error, match="key"):
        getattr(through, write)("key", b"ours..", *([older] if write == "replace" else []))
    assert through.get("key") == b"theirs"


def test_all_answers_lost_but_reading_back_tells(through: Store, proxy: Proxy) -> None:
    proxy.lose_answers("^POST", 3)
    etag = through.put_new("key", b"ours")
    assert through.get_with_etag("key") == (b"ours", etag)


@pytest.mark.parametrize("write", ["put", "put_new"])
def test_an_answer_lost_and_then_nobody_there(through: Store, proxy: Proxy, location: GcsLocation, write: str) -> None:
    proxy.lose_answers("^POST", 1, then_refuse=True)
    with pytest.raises(OutcomeUnknownError, match="key"):
        getattr(through, write)("key", b"ours")
    assert location.store().get("key") == b"ours"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_every_request_is_repeated_when_the_store_is_busy(through: Store, proxy: Proxy, status: int) -> None:
    through.put("key", b"1")
    asks = asks_of(through)
    del asks[7]  # `replace` of a version that is not one
    for ask in asks:
        through.delete(["key"]) if ask in asks[-3:] else through.put("key", b"other")
        proxy.answer_instead("", status, handled=(False, False))
        if ask is asks[6]:
            with pytest.raises(AlreadyExistsError):
                ask()
        else:
            ask()


def test_a_store_that_stays_busy_is_unreachable(through: Store, proxy: Proxy) -> None:
    proxy.answer_instead("", 429, '{"error": {"message": "slow down"}}', handled=(False,) * 3)
    with pytest.raises(UnreachableError, match="slow down") as caught:
        through.get("key")
    assert "fewer tasks" in caught.value.hint


@pytest.mark.parametrize(("lost", "size"), [("^POST", 7), *((lost, LARGE) for lost in ("^POST", "^PUT"))])
def test_lost_answers_to_an_upload(through: Store, proxy: Proxy, location: GcsLocation, lost: str, size: int) -> None:
    proxy.lose_answers(lost, 2)
    upload(through, "key", data_of(size))
    assert through.get("key") == data_of(size)


@pytest.mark.parametrize("handled", [True, False])
@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_part_is_sent_again_only_as_far_as_it_is_not_kept(
    through: Store, proxy: Proxy, part: int, handled: bool
) -> None:
    with through.upload("key") as started:
        for number in range(1, 4):
            if number == part:
                proxy.answer_instead("^PUT", 503, handled=(handled,))
            started.write(data_of(LARGE)[(number - 1) * PART : number * PART])
            started._collect(0)  # type: ignore[attr-defined]
        started.commit()
    assert through.get("key") == data_of(LARGE)


@pytest.mark.parametrize("times", [1, 3])
def test_a_part_of_which_nothing_is_kept_is_sent_again_for_some_times(through: Store, proxy: Proxy, times: int) -> None:
    proxy.answer_instead("^PUT", 308, handled=(False,) * times)
    with pytest.raises(UnreachableError, match="kept nothing") if times == 3 else nullcontext():
        upload(through, "key", data_of(LARGE))
    assert [info.size for info in through.list()] == ([] if times == 3 else [LARGE])


def test_a_lost_commit_over_a_taken_key(through: Store, proxy: Proxy, location: GcsLocation) -> None:
    with through.upload("key") as started:
        started.write(data_of(PART + 1))
        started._collect(0)  # type: ignore[attr-defined]
        location.store().put("key", b"theirs")
        proxy.lose_answers("^PUT", 1)
        with pytest.raises(AlreadyExistsError):
            started.commit()
    assert through.get("key") == b"theirs"


def test_a_commit_without_any_answer(through: Store, proxy: Proxy, location: GcsLocation) -> None:
    started = through.upload("key")
    started.write(data_of(PART + 1))
    started._collect(0)  # type: ignore[attr-defined]
    proxy.lose_answers("^PUT", 1, then_refuse=True)
    with pytest.raises(OutcomeUnknownError) as caught:
        started.commit()
    assert location.store().get("key") == data_of(PART + 1)
    assert any("reading back" in note for note in caught.value.__notes__)


def test_a_part_that_can_not_be_sent_ends_the_upload(through: Store, proxy: Proxy) -> None:
    proxy.answer_instead("^PUT", 503, handled=(False,) * 3)
    with pytest.raises(UnreachableError, match="key"):
        upload(through, "key", data_of(LARGE))
    assert proxy.requests[-1].startswith("DELETE /upload/")
    assert list(through.list()) == []


def test_damaged_bytes_are_refused(location: GcsLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.store.gcs.store.crc32c", lambda data, crc=0: crc ^ len(data))
    with pytest.raises(StoreError, match="calculated") as caught:
        location.store().put("key", b"data")
    assert "damaged on their way" in caught.value.hint
    with pytest.raises(StoreError, match="other bytes"):
        upload(location.store(), "large", data_of(PART + 1))
    assert [info.key for info in location.store().list()] == ["large"]  # Google would have refused it


def test_a_denied_request_names_the_permission(through: Store, proxy: Proxy) -> None:
    text = "me@x does not have storage.objects.create access to the Google Cloud Storage object."
    asks = asks_of(through)
    del asks[8]  # `delete` returns it
    for ask in asks:
        proxy.answer_instead("", 403, f'{{"error": {{"code": 403, "message": "{text}"}}}}', handled=(False,))
        with pytest.raises(DeniedError, match=r"storage\.objects\.create") as caught:
            ask()
        assert "permission" in caught.value.hint
    proxy.answer_instead("", 403, text, handled=(False,))
    (failed,) = through.delete(["key"])
    assert isinstance(failed.error, DeniedError)


def test_objects_have_a_class_and_retention_unless_they_are_replaced(location: GcsLocation) -> None:
    options = location.options(retention_mode="Unlocked", retention_days=2, storage_class="NEARLINE", project="payer")
    store = open_store(location.url, {"gcs": options}, key_class=layout.key_class)
    upload(store, "large", data_of(PART + 1))
    for key in ("small", layout.LOCK):
        store.put(key, b"1")
    items: list[dict[str, Any]] = location.server.call(f"/storage/v1/b/{location.bucket}/o")["items"]
    found = {item["name"].removeprefix("some/prefix/"): item for item in items}
    assert {key: (item["storageClass"], "retention" in item) for key, item in found.items()} == {
        "large": ("NEARLINE", True), "small": ("NEARLINE", True), layout.LOCK: ("STANDARD", False)
    }  # fmt: skip


def test_the_project_pays_for_every_request(location: GcsLocation, proxy: Proxy) -> None:
    store = location.opened(endpoint_url=proxy.url, project="payer")
    upload(store, "key", data_of(PART + 1))
    store.get("key"), store.stat("key"), [*store.list()], store.delete(["key"])
    assert len(proxy.requests) == 7
    assert all("userProject=payer" in request for request in proxy.requests if "upload_id" not in request)


def test_a_forked_process_has_connections_of_its_own(location: GcsLocation) -> None:
    store = location.store()
    store.put("key", b"data")
    child = os.fork()
    if not child:
        os._exit(0 if all(store.get("key") == b"data" for _ in range(20)) else 1)
    for _ in range(20):
        assert store.get("key") == b"data"
    assert os.waitpid(child, 0)[1] == 0


def test_cut_bodies_are_resumed(through: Store, proxy: Proxy) -> None:
    data = data_of(6 * CHUNK + 5)
    through.put("key", data)
    reads: list[Callable[[], bytes]] = [
        lambda: through.get("key"),
        lambda: b"".join(through.open_range("key", 0, len(data))),
        lambda: b"".join(filled(through, 0, len(data))),
    ]
    for read in reads:
        proxy.cut_bodies(3 * CHUNK // 2, 10, 500, 2 * CHUNK + 1000)
        assert read() == data
    proxy.cut_bodies(*[1000] * 10)
    with pytest.raises(UnreachableError, match="key"):
        through.get("key")


@pytest.mark.parametrize("read", [filled, ranged])
def test_reads_are_of_one_version(read: Read, through: Store, proxy: Proxy, location: GcsLocation) -> None:
    through.put("key", data_of(3 * CHUNK))
    proxy.cut_bodies(3 * CHUNK // 2)
    pieces = read(through, 0, 3 * CHUNK)
    assert next(pieces) == data_of(3 * CHUNK)[:CHUNK]
    location.store().put("key", bytes(3 * CHUNK))
    with pytest.raises(PreconditionError, match="key"):
        list(pieces)


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - {"checksum"}))
def test_an_answer_cut_in_any_header_is_asked_for_again(through: Store, proxy: Proxy, name: str) -> None:
    check = CHECKS[name][1]
    requests = {
        "stat": "^GET",
        "delete": "^DELETE",
        "upload_create": "^POST",
        "upload_part": "^PUT",
        "upload_commit": "^PUT",
    }
    method = requests.get(name, "^POST" if CHECKS[name][0] == "^PUT" else CHECKS[name][0])
    put_objects(through)
    before = len(proxy.answers)
    check(through)
    asked = [
        answer
        for line, answer in zip(proxy.answered[before:], proxy.answers[before:], strict=True)
        if re.match(method, line)
    ]
    for after in cuts_in(asked[-1 if name == "upload_commit" else 0]):
        proxy.cut_answers(method, *[1 << 40] * (len(asked) - 1 if name == "upload_commit" else 0), after)
        check(through)
        assert not proxy.answers_to_cut, f"no answer was cut after {after} bytes"
