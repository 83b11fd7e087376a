"""moto, an S3 in Python: for the demo, and as a second opinion in the contract tests. Data is in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.dev.s3 import S3Server


class MotoServer(S3Server):
    name = "moto"
    health = "/moto-api/data.json"

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], {}
