"""MinIO with a key management of its own: one static key, for encryption by the store."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import boto3

from scripts.dev.minio import Minio


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
        sts: Any = boto3.client(
            "sts",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )
        given = sts.assume_role(
            RoleArn="arn:aws:iam::111122223333:role/test",
            RoleSessionName="test",
            Policy=policy,
            DurationSeconds=3600,
        )["Credentials"]
        return {
            "access_key_id": given["AccessKeyId"],
            "secret_access_key": given["SecretAccessKey"],
            "session_token": given["SessionToken"],
        }
