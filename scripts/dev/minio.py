"""MinIO as an S3 server of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.dev.programs import MINIO, binary
from scripts.dev.s3 import S3Server


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
        return [str(binary(MINIO)), "server", str(folder), "--address", f"127.0.0.1:{port}", "--quiet"], env
