"""Azure Blob Storage of tests: Azurite, Microsoft's emulator, which keeps its data in memory."""

from __future__ import annotations

import base64
import secrets
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from azure.storage.blob import BlobServiceClient

from scripts.dev import tools
from scripts.dev.cache import entry, run
from scripts.dev.process import HttpServer

VERSION = "3.37.0"
_LOCK = Path(__file__).parent / "npm"
"""npm's own lock of Azurite and all that it needs, with hashes. After a change of package.json: `npm install
--package-lock-only --ignore-scripts` in this folder."""


def azurite() -> Path:
    """The program, installed on first use."""

    def fill(folder: Path) -> None:
        for path in _LOCK.iterdir():
            shutil.copy(path, folder)
        argv = [tools.npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
        run(argv, f"installing Azurite {VERSION}", "check that npm can fetch packages, then run again")

    return entry(f"azurite-{VERSION}", fill) / "node_modules/azurite/dist/src/blob/main.js"


class Azurite(HttpServer):
    """Azurite's blob service on loopback. After `stop` or `kill` it can `start` again, with its port and account and
    without its data."""

    name: ClassVar[str] = "azurite"
    taken = "EADDRINUSE"
    account: ClassVar[str] = "kbackuptest"

    def __init__(self) -> None:
        super().__init__()
        self.account_key = base64.b64encode(secrets.token_bytes(32)).decode()

    @property
    def endpoint_url(self) -> str:
        return f"{super().endpoint_url}/{self.account}"

    @property
    def options(self) -> dict[str, Any]:
        """What `AzureOptions` takes to reach it."""
        return {"endpoint_url": self.endpoint_url, "account_key": self.account_key}

    @property
    def env(self) -> dict[str, str]:
        """The same for a process that takes it from the environment, as Azure's command line names it."""
        named = f"AccountName={self.account};AccountKey={self.account_key};BlobEndpoint={self.endpoint_url}"
        return {"AZURE_STORAGE_CONNECTION_STRING": named}

    def client(self) -> BlobServiceClient:
        named = {"account_name": self.account, "account_key": self.account_key}
        return BlobServiceClient(self.endpoint_url, credential=named)

    def create_container(self, name: str) -> None:
        self.client().create_container(name)

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        argv = [tools.node(), str(azurite()), "--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry"]
        argv += ["--silent", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
        return argv, {"AZURITE_ACCOUNTS": f"{self.account}:{self.account_key}"}

    def _healthy(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint_url, timeout=2).close()
        except urllib.error.HTTPError as refused:
            refused.close()  # without credentials: it answers
        except OSError:
            return False
        return True
