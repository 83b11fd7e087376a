"""MinIO, built once from its pinned source by Go (which checks it against the public checksum database)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.dev import cache, tools
from scripts.dev.s3 import S3Server

MODULE = "github.com/minio/minio"
VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"


@functools.cache
def minio_binary() -> Path:
    """The server's path; built on first use (about three minutes on two cores)."""

    def fill(folder: Path) -> None:
        env = {"GOBIN": str(folder), "CGO_ENABLED": "0", "GOFLAGS": ""}
        hint = "check that Go modules can be fetched, then run again"
        cache.run([tools.go(), "install", f"{MODULE}@{VERSION}"], f"building {MODULE}@{VERSION}", hint, env)

    return cache.entry(f"minio-{VERSION}", fill) / "minio"


class Minio(S3Server):
    name = "minio"
    health = "/minio/health/ready"

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        env = {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_CI_CD": "on",  # one folder of a shared disk will do
        }
        return [str(minio_binary()), "server", str(folder), "--address", f"127.0.0.1:{port}", "--quiet"], env
