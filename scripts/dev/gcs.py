"""The Google Cloud Storage of tests: fake-gcs-server, which keeps its data in memory."""

from __future__ import annotations

import json
import urllib.request
from typing import Any, ClassVar

from scripts.dev.cache import FAKE_GCS, binary
from scripts.dev.process import Process, Server, free_ports


class FakeGcs(Server):
    """fake-gcs-server on loopback. After `stop` or `kill` it can `start` again, with its port and without its data."""

    name: ClassVar[str] = "fakegcs"

    def __init__(self) -> None:
        super().__init__()
        self._port = 0

    def _open(self) -> None:
        (self._port,) = free_ports(1)
        self.start()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

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

    def start(self) -> None:
        """Start it and wait until it answers."""
        address = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(self._port))
        public = ("-public-host", f"127.0.0.1:{self._port}")
        argv = [str(binary(FAKE_GCS)), "-backend", "memory", *address, *public, "-log-level", "warn"]
        self._processes[0] = Process(argv, self.folder / "log")
        self.wait(0, self._healthy, self.name)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint_url + "/_internal/healthcheck", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:  # HTTP errors are OSErrors too
            return False
