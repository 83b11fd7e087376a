"""Answers that no such store gives are errors of the store by name: broken XML and JSON, names that were not asked for,
negative sizes, ranges that are too short or too long, and upload sessions at another server."""

from __future__ import annotations

import contextlib
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from kbackup.errors import CorruptError, KbackupError, StoreError
from kbackup.store import S3Options, Store, open_store
from kbackup.store.azure import AzureOptions
from kbackup.store.base import write_once
from kbackup.store.gcs import GcsOptions
from kbackup.store.gcs.client import GcsBucket

DATE = "Thu, 26 Nov 2026 08:00:00 GMT"
PART = 5 << 20


class Answer(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 (never changed)


class Server(ThreadingHTTPServer):
    """A server of HTTP that gives `answer` to each request, and notes the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.forget()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def forget(self) -> None:
        """Give empty answers from now on, and forget the requests."""
        self.answer: Callable[[str, str], Answer] = lambda method, path: Answer()
        self.requests: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _respond(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {self.path}")
        answer = self.server.answer(self.command, self.path)
        headers = {"Date": DATE, "Content-Length": str(len(answer.body)), "Connection": "close"} | answer.headers
        self.send_response_only(answer.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(answer.body)
        self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _respond  # noqa: N815 (the server's names)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def running_server() -> Iterator[Server]:
    """One address for all tests, so that boto3 makes one client for them, which takes longer than most of them."""
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def server(running_server: Server) -> Server:
    running_server.forget()
    return running_server


def s3_store(url: str) -> Store:
    options = S3Options(endpoint_url=url, access_key_id="me", secret_access_key="word", max_attempts=1)
    return open_store("s3://bucket/pre", {"s3": options})


def azure_store(url: str) -> Store:
    options = AzureOptions(endpoint_url=f"{url}/acct", account_key="c2VjcmV0", max_attempts=1)
    return open_store("az://acct/bucket/pre", {"azure": options})


def gcs_store(url: str) -> Store:
    return open_store("gs://bucket/pre", {"gcs": GcsOptions(endpoint_url=url, max_attempts=1, part_size=PART // 20)})


KINDS: dict[str, Callable[[str], Store]] = {"s3": s3_store, "azure": azure_store, "gcs": gcs_store}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.store.reading._FIRST_WAIT", 0.0)
    monkeypatch.setattr("kbackup.store.s3.upload._CONFLICT_WAITS", ())


def upload_in_parts(store: Store) -> None:
    with store.upload("key") as upload:
        upload.in_parts()
        upload.write(bytes(PART + 1))
        upload.commit()


OPERATIONS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("key"),
    "get_range": lambda store: store.get_range("key", 2, 3),
    "fill": lambda store: list(store.fill("key", 2, memoryview(bytearray(3)))),
    "stat": lambda store: store.stat("key"),
    "checksum": lambda store: store.checksum("key"),
    "list": lambda store: list(store.list()),
    "list_dirs": lambda store: list(store.list_dirs()),
    "put": lambda store: store.put("key", b"1"),
    "put_new": lambda store: store.put_new("key", b"1"),
    "replace": lambda store: store.replace("key", b"1", '"1"'),
    "upload": upload_in_parts,
    "delete": lambda store: store.delete(["key"]),
}

OBJECT = {"ETag": '"1"', "Last-Modified": DATE, "X-Goog-Generation": "1", "x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}
NONSENSE = {
    "nothing": Answer(),
    "no document": Answer(body=b"{<<not a document"),
    "a list": Answer(body=b"[1, 2]"),
    "a number": Answer(body=b"7"),
    "deep JSON": Answer(body=b'{"items":' + b"[" * 100_000),
    "another JSON": Answer(body=b'{"items": 3, "prefixes": {"a": 1}, "generation": null, "size": "x", "name": 1}'),
    "items of nothing": Answer(body=b'{"items": [{}, 1, null], "prefixes": [1, null]}'),
    "another XML": Answer(body=b'<?xml version="1.0"?><Other><Blobs/><Contents>x</Contents></Other>'),
    "items without content": Answer(
        body=b"<R><Contents/><Blobs><Blob/><BlobPrefix/></Blobs><CommonPrefixes/><Deleted/><Error/></R>"
    ),
    "wrong values": Answer(
        body=b"<R><Contents><Key>pre/a</Key><Size>x</Size><LastModified>never</LastModified></Contents>"
        b"<Blobs><Blob><Name>pre/a</Name><Properties><Content-Length>x</Content-Length></Properties></Blob></Blobs></R>"
    ),
    "headers of nothing": Answer(206, b"12345", OBJECT | {"Content-Range": "bytes x-y/z", "Last-Modified": "never"}),
    "an error of nothing": Answer(400, b'{"error": {"message": {"a": [1]}}}'),
    "an error without text": Answer(500, b"\xff\xfe<"),
}


@pytest.mark.parametrize("answer", NONSENSE)
def test_nonsense_is_an_error_of_the_store_by_name(kind: str, answer: str, server: Server) -> None:
    server.answer = lambda method, path: NONSENSE[answer]
    store = KINDS[kind](server.url)
    told = {name: error_of(operation, store) for name, operation in OPERATIONS.items()}
    own = ("s3://bucket", "az://acct/bucket", "gs://bucket")
    strange = {name: error for name, error in told.items() if error and not error.startswith(own)}
    assert not strange


def error_of(operation: Callable[[Store], object], store: Store) -> str:
    """Return the message of kbackup's error that an operation ends with, '' if with none."""
    try:
        operation(store)
    except KbackupError as error:
        return error.message
    return ""


def item_of(kind: str, name: str, size: str) -> bytes:
    """Return a page of a listing that has one object."""
    if kind == "gcs":
        item = {"name": name, "size": size, "generation": "1", "timeCreated": "2026-11-26T08:00:00Z"}
        return json.dumps({"items": [item]}).encode()
    if kind == "s3":
        return (
            f"<ListBucketResult><Contents><Key>{name}</Key><Size>{size}</Size><ETag>&quot;1&quot;</ETag>"
            "<LastModified>2026-11-26T08:00:00Z</LastModified></Contents></ListBucketResult>"
        ).encode()
    return (
        f"<EnumerationResults><Blobs><Blob><Name>{name}</Name><Properties><Content-Length>{size}</Content-Length>"
        f"<Last-Modified>{DATE}</Last-Modified><Etag>1</Etag></Properties></Blob>"
        "</Blobs><NextMarker/></EnumerationResults>"
    ).encode()


def folder_of(kind: str, name: str) -> bytes:
    """Return a page of a listing that has one folder."""
    if kind == "gcs":
        return json.dumps({"prefixes": [name]}).encode()
    if kind == "s3":
        return f"<R><CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes></R>".encode()
    return f"<R><Blobs><BlobPrefix><Name>{name}</Name></BlobPrefix></Blobs><NextMarker/></R>".encode()


def test_a_listing_of_what_was_asked_for_is_taken(kind: str, server: Server) -> None:
    server.answer = lambda method, path: Answer(body=item_of(kind, "pre/topics", "5"))
    store = KINDS[kind](server.url)
    assert [(info.key, info.size) for info in store.list("top")] == [("topics", 5)]
    server.answer = lambda method, path: Answer(body=folder_of(kind, "pre/topics/"))
    assert list(store.list_dirs()) == ["topics"]


@pytest.mark.parametrize("name", ["other/topics", "topics", "pre2/topics", "pre/else"])
def test_names_that_were_not_asked_for_are_refused(kind: str, name: str, server: Server) -> None:
    store = KINDS[kind](server.url)
    server.answer = lambda method, path: Answer(body=item_of(kind, name, "5"))
    with pytest.raises(StoreError, match=rf"bucket.* lists '{name}'"):
        list(store.list("topics/"))
    server.answer = lambda method, path: Answer(body=folder_of(kind, f"{name}/"))
    with pytest.raises(StoreError, match=rf"bucket.* lists '{name}/'"):
        list(store.list_dirs("topics/sub/"))


def test_a_negative_size_in_a_listing_is_refused(kind: str, server: Server) -> None:
    server.answer = lambda method, path: Answer(body=item_of(kind, "pre/topics", "-5"))
    with pytest.raises(StoreError, match=r"bucket.*size of -5 bytes of 'topics'"):
        list(KINDS[kind](server.url).list())


def test_a_listing_that_goes_on_forever_is_refused(kind: str, server: Server) -> None:
    page = item_of(kind, "pre/topics", "5")
    if kind == "gcs":
        page = page[:-1] + b', "nextPageToken": "again"}'
    else:
        more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
        page = page.replace(b"<NextMarker/>", b"<NextMarker>again</NextMarker>").replace(b"</ListB", more + b"</ListB")
    server.answer = lambda method, path: Answer(body=page)
    with pytest.raises(StoreError, match=r"bucket"):
        list(KINDS[kind](server.url).list())


@pytest.mark.parametrize(
    ("body", "content_range", "error"),
    [
        (b"345", "bytes 2-4/10", None),
        (b"345", "bytes 2-4/*", None),
        (b"34", "bytes 2-3/10", "bytes 2-3 only"),  # short, and there is more
        (b"34567", "bytes 2-6/10", "asked for 3 bytes"),  # long
        (b"34567", "bytes 2-4/10", "asked for 3 bytes"),  # the body is not the range that it says
        (b"3", "bytes 2-4/10", "asked for 3 bytes"),
        (b"123", "bytes 0-2/10", "ranged reads"),
        (b"345", "bytes 2--4/10", "ranged reads"),
        (b"345", "", "ranged reads"),
    ],
)
@pytest.mark.parametrize("read", ["get_range", "fill"])
def test_a_range_is_the_one_that_was_asked_for(
    kind: str, body: bytes, content_range: str, error: str | None, read: str, server: Server
) -> None:
    server.answer = lambda method, path: Answer(206, body, OBJECT | {"Content-Range": content_range})
    store = KINDS[kind](server.url)
    into = memoryview(bytearray(3))
    ask: Callable[[], object] = (
        (lambda: store.get_range("key", 2, 3)) if read == "get_range" else (lambda: [*store.fill("key", 2, into)])
    )
    if error is None:
        ask()
        return
    with pytest.raises(StoreError, match=rf"bucket/pre/key.*{error}"):
        ask()


def test_a_range_past_the_end_of_the_object_is_damage(kind: str, server: Server) -> None:
    server.answer = lambda method, path: Answer(206, b"34", OBJECT | {"Content-Range": "bytes 2-3/4"})
    with pytest.raises(CorruptError, match="ends at byte 4, wanted up to byte 5"):
        KINDS[kind](server.url).get_range("key", 2, 3)


# Upload sessions of Google's.


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:{other}/upload?upload_id=hush",
        "//127.0.0.1:{other}/upload?upload_id=hush",
        "https://127.0.0.1:{own}/upload?upload_id=hush",
        "http://me:word@127.0.0.1:{own}/upload?upload_id=hush",
        "http://127.0.0.1:none/upload?upload_id=hush",
        "ftp://127.0.0.1/upload?upload_id=hush",
        "http://[/upload?upload_id=hush",
    ],
)
def test_an_upload_session_at_another_server_is_refused(location: str, server: Server) -> None:
    with Server() as other:
        named = location.format(other=other.server_port, own=server.server_port)
        server.answer = lambda method, path: Answer(headers={"Location": named})
        with pytest.raises(StoreError, match="gs://bucket/pre/key") as told:
            upload_in_parts(gcs_store(server.url))
        assert other.requests == []
    assert [request.partition(" ")[0] for request in server.requests] == ["POST"]
    assert "hush" not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize(
    ("endpoint", "location"),
    [
        ("", "https://storage.googleapis.com/upload/storage/v1/b/b/o?upload_id=1"),
        ("", "https://www.googleapis.com/upload/storage/v1/b/b/o?upload_id=1"),
        ("http://localhost:4443", "/upload?upload_id=1"),
        ("https://mine.example", "https://mine.example:443/upload?upload_id=1"),
    ],
)
def test_an_upload_session_at_the_stores_own_server_is_used(endpoint: str, location: str) -> None:
    bucket = GcsBucket("b", "", GcsOptions(endpoint_url=endpoint), write_once)
    assert bucket.session_of("key", location).endswith(location)


def test_the_address_of_a_session_is_in_no_traceback(server: Server) -> None:
    """Whoever knows it may finish the upload without a login."""
    session = Answer(headers={"Location": f"{server.url}/session?upload_id=hush"})

    def answer(method: str, path: str) -> Answer:
        return session if method == "POST" else Answer(200, b"", {"Content-Length": "cut"})

    server.answer = answer
    with pytest.raises(KbackupError) as told:
        upload_in_parts(gcs_store(server.url))
    assert any("upload_id=hush" in request for request in server.requests)
    assert "hush" not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ("bytes=0-9999999", "9999999|10000000 bytes of the upload"),
        ("bytes=0--5", "not report how many bytes it kept"),
        ("bytes=7-9", "not report how many bytes it kept"),
        ("all", "not report how many bytes it kept"),
    ],
)
def test_a_session_that_keeps_what_was_not_sent_is_refused(kept: str, message: str, server: Server) -> None:
    session = Answer(headers={"Location": f"{server.url}/session"})

    def answer(method: str, path: str) -> Answer:
        return session if method == "POST" else Answer(308, headers={"Range": kept})

    server.answer = answer
    with pytest.raises(StoreError, match=f"gs://bucket/pre/key.*({message})"):
        upload_in_parts(gcs_store(server.url))
