"""The common base of the S3 servers: an address, credentials, a data folder, and a bucket made with them."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import boto3
from botocore.config import Config

from scripts.dev.process import Process, StartError, free_ports, open_on_free_ports

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class S3Server(ABC):
    """An S3 server on loopback as a context manager: gone at the end, with its data.

    `stop`, `kill` and `start` are for tests of a store that goes away and comes back: port, credentials and
    (but for moto's, which is in memory) data stay.
    """

    name: ClassVar[str]
    health: ClassVar[str]
    region: ClassVar[str] = "us-east-1"

    def __init__(self) -> None:
        self.access_key = f"test-{secrets.token_hex(6)}"
        self.secret_key = secrets.token_hex(20)
        self._port = 0
        self._folder = Path()
        self._process: Process | None = None

    @abstractmethod
    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command line and what it needs in its environment."""

    def __enter__(self) -> Self:
        open_on_free_ports(self._open, self.close, "in use")
        return self

    def _open(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"kbackup-{self.name}-"))
        (self._port,) = free_ports(1)
        self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise StartError(f"{self.name} is not started")
        return self._process.pid

    @property
    def data(self) -> Path:
        """The folder of the server's buckets, each a folder (moto: empty)."""
        return self._folder / "data"

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def client(self) -> S3Client:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}),
        )

    def create_bucket(self, name: str, *, object_lock: bool = False) -> None:
        """Make a bucket; with `object_lock`, a versioned one whose objects can be put under retention."""
        self.client().create_bucket(Bucket=name, ObjectLockEnabledForBucket=object_lock)

    def start(self) -> None:
        """Start it and wait until it answers."""
        argv, env = self._command(self._port, self.data)
        self._process = Process(argv, self._folder / "log", env)
        self._process.wait_ready(self._healthy, self.name, 60)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Stop and remove everything; idempotent."""
        self.kill()
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint_url + self.health, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:  # HTTP errors are OSErrors too
            return False
