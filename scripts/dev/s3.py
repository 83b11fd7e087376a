"""The S3 servers of tests, demo and benches: MinIO, versitygw over a directory, and moto, an S3 in Python that keeps
its data in memory."""

from __future__ import annotations

import base64
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import boto3
from botocore.config import Config

from scripts.dev.cache import MINIO, VERSITY, binary
from scripts.dev.process import HttpServer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class S3Server(HttpServer):
    """An S3 server on loopback. After `stop` or `kill` it can `start` again, with its port, credentials and (but for
    moto's, which is in memory) data."""

    taken = "in use"
    region: ClassVar[str] = "us-east-1"

    def __init__(self) -> None:
        super().__init__()
        self.access_key = f"test-{secrets.token_hex(6)}"
        self.secret_key = secrets.token_hex(20)

    @property
    def options(self) -> dict[str, Any]:
        """What `S3Options` takes to reach it."""
        return {
            "endpoint_url": self.endpoint_url,
            "region": self.region,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }

    @property
    def toml(self) -> str:
        """The same as the section `s3` of a configuration."""
        return "[s3]\n" + "".join(f'{name} = "{value}"\n' for name, value in self.options.items())

    @property
    def env(self) -> dict[str, str]:
        """The same for a process that takes it from the environment, as AWS's SDKs name it."""
        names = ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        return dict(zip(names, self.options.values(), strict=True))

    def client(self) -> S3Client:
        client: S3Client = self._client("s3", config=Config(s3={"addressing_style": "path"}))
        return client

    def _client(self, service: str, **more: Any) -> Any:
        keys = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
        make: Any = boto3.client
        return make(service, self.region, endpoint_url=self.endpoint_url, **keys, **more)

    def create_bucket(self, name: str, *, object_lock: bool = False) -> None:
        """Make a bucket; with `object_lock`, a versioned one whose objects can be put under retention."""
        self.client().create_bucket(Bucket=name, ObjectLockEnabledForBucket=object_lock)


class Minio(S3Server):
    name = "minio"
    health = "/minio/health/cluster"  # its /ready says yes before it takes requests

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        env = {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_CI_CD": "on",  # one folder of a shared disk will do
        }
        return [str(binary(MINIO)), "server", str(folder), "--address", f"{self.host}:{port}", "--quiet"], env


class MinioWithKms(Minio):
    kms_key: ClassVar[str] = "kbackup-test"

    def __init__(self) -> None:
        super().__init__()
        self._secret = base64.b64encode(secrets.token_bytes(32)).decode()

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        argv, env = super()._command(port, folder)
        return argv, {**env, "MINIO_KMS_SECRET_KEY": f"{self.kms_key}:{self._secret}"}

    def credentials(self, policy: str) -> dict[str, Any]:
        """Return credentials for an hour, limited to the rights of `policy` (JSON), as `S3Options` takes them."""
        given = self._client("sts").assume_role(
            RoleArn="arn:aws:iam::111122223333:role/test", RoleSessionName="test", Policy=policy, DurationSeconds=3600
        )["Credentials"]
        return {
            "access_key_id": given["AccessKeyId"],
            "secret_access_key": given["SecretAccessKey"],
            "session_token": given["SessionToken"],
        }


class MotoServer(S3Server):
    name = "moto"
    health = "/moto-api/data.json"

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], {}


class VersityServer(S3Server):
    name = "versitygw"
    health = "/health"

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        folder.mkdir(exist_ok=True)
        keys = {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}
        options = ("--port", f"127.0.0.1:{port}", "--health", self.health, "--quiet")
        return [str(binary(VERSITY)), *options, "posix", str(folder)], keys
