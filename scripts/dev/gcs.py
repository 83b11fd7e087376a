"""The Google Cloud Storage of tests: fake-gcs-server, which keeps its data in memory."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from scripts.dev.cache import FAKE_GCS, binary
from scripts.dev.process import HttpServer


class FakeGcs(HttpServer):
    """fake-gcs-server on loopback. After `stop` or `kill` it can `start` again, with its port and without its data."""

    name: ClassVar[str] = "fakegcs"

    health: ClassVar[str] = "/_internal/healthcheck"

    @property
    def options(self) -> dict[str, Any]:
        """What `GcsOptions` takes to reach it."""
        return {"endpoint_url": self.endpoint_url}

    @property
    def env(self) -> dict[str, str]:
        """The same for a process that takes it from the environment, as Google's SDKs name it."""
        return {"STORAGE_EMULATOR_HOST": self.endpoint_url}

    def create_bucket(self, name: str) -> None:
        self.call("/storage/v1/b", {"name": name})

    def call(self, path: str, document: object = None) -> Any:
        """Return the JSON answer to a GET request, or to a POST of `document`."""
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self.endpoint_url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        address = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port))
        public = ("-public-host", f"127.0.0.1:{port}")
        return [str(binary(FAKE_GCS)), "-backend", "memory", *address, *public, "-log-level", "warn"], {}
