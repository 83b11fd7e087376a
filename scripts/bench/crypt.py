"""python -m scripts.bench.crypt: what encryption costs, alone and on the way to and from a local S3 server, in MiB a
second of one core's own time (not of the clock, so that what else the machine does plays no part)."""

from __future__ import annotations

import base64
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from awscrt.checksums import crc64nvme

from kbackup.archive import layout
from kbackup.store import S3Options, Store, open_store
from kbackup.store.base import CHUNK, Buffer, ObjectInfo, Upload, view_of
from kbackup.store.crypt import CryptUpload, Reader
from kbackup.store.crypt.frames import Cipher, Header, new_header
from kbackup.store.crypt.kek import generate_key
from scripts.dev.minio import Minio

_SIZE = 128 << 20
_PIECE = 4 << 20
_SPAN = 16 << 20
_REPEAT = 5
_KEY = "KBACKUP_BENCH_KEY"


class Collected(Upload):
    """An upload into memory."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.keep = False

    def write(self, data: Buffer) -> None:
        if self.keep:
            self.pieces.append(view_of(data).tobytes())

    def commit(self) -> tuple[int, int]:
        return 0, 0

    def abort(self) -> None: ...


class One:
    """A store of one object, in memory, and its keyring."""

    def __init__(self, stored: bytes, data_key: bytes) -> None:
        self.stored, self.data_key = stored, data_key

    def cipher(self, header: Header, name: str) -> Cipher:
        return Cipher(self.data_key, header, "archive", name)

    def stat(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.stored), "1", 0.0)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.stored[start : start + length]

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        for at in range(start, start + length, CHUNK):
            yield self.stored[at : min(at + CHUNK, start + length)]


def encrypt(data: memoryview, data_key: bytes, *, keep: bool) -> bytes:
    collected = Collected()
    collected.keep = keep
    header = new_header(bytes(16))
    upload = CryptUpload(collected, header, Cipher(data_key, header, "archive", "name"), "name")
    for at in range(0, len(data), _PIECE):
        upload.write(data[at : at + _PIECE])
    upload.commit()
    return b"".join(collected.pieces)


def read(store: Any, into: memoryview) -> None:
    reader = Reader(store, store)
    for start in range(0, _SIZE, len(into)):
        for _ in reader.fill("name", start, into):
            pass


def copy(store: Any, into: memoryview) -> None:
    """Read without decrypting: the cost that is taken off."""
    for start in range(0, _SIZE, len(into)):
        at = 0
        for chunk in store.open_range("name", start, len(into)):
            into[at : at + len(chunk)] = chunk
            at += len(chunk)


def upload(store: Store, data: memoryview) -> None:
    store.delete(["name"])
    with store.upload("name") as upload:
        for at in range(0, len(data), _PIECE):
            upload.write(data[at : at + _PIECE])
        upload.commit()


def download(store: Store, into: memoryview) -> None:
    for start in range(0, _SIZE, len(into)):
        for piece in store.fill("name", start, into):
            crc64nvme(piece)


def measure(label: str, loop: Callable[[], object]) -> None:
    speeds = []
    loop()
    for _ in range(_REPEAT):
        began = time.process_time()
        loop()
        speeds.append(_SIZE / (1 << 20) / (time.process_time() - began))
    print(
        f"{label:<26} {statistics.median(speeds):8,.0f} MiB/s of a core ({min(speeds):,.0f} to {max(speeds):,.0f})"
    )


def main() -> None:
    data = memoryview(base64.b64encode(secrets.token_bytes(_SIZE * 3 // 4)))
    data_key = secrets.token_bytes(32)
    store = One(encrypt(data, data_key, keep=True), data_key)
    into = memoryview(bytearray(_SPAN))
    measure("CRC-64 alone", lambda: crc64nvme(data))
    measure("encrypt, with CRC-64", lambda: encrypt(data, data_key, keep=False))
    measure("copy into place", lambda: copy(store, into))
    measure("decrypt into place", lambda: read(store, into))
    with Minio() as server:
        server.create_bucket("bench")
        options = S3Options(
            endpoint_url=server.endpoint_url,
            region=server.region,
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
        )
        os.environ[_KEY] = generate_key()
        for label, key in (("in the clear", ""), ("encrypted", f"env:{_KEY}")):
            there = open_store(
                f"s3://bench/{label.replace(' ', '-')}", options, key, key_class=layout.key_class
            )
            measure(f"S3 upload, {label}", partial(upload, there, data))
            measure(f"S3 download, {label}", partial(download, there, into))


if __name__ == "__main__":
    main()
