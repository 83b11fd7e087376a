"""TLS of `kbackup serve`, by files of a certificate and its key that are read again when they change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from kbackup.errors import UsageError
from kbackup.util.system import FileState, file_state

log = logging.getLogger(__name__)


class ServerTls:
    """Gives each new connection the certificate that the files have at the moment."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Both files are PEM; the certificate comes with those that vouch for it. Raise `UsageError` if they can't be
        used."""
        self._certificate = certificate
        self._key = key
        self._state = self._files()
        try:
            self._current = self._load()
        except (OSError, ValueError) as error:
            words = f"certificate {certificate} with key {key} can't be used: {error}"
            raise UsageError(words, "give PEM files that belong together, the key without a password") from error
        self.context = self._load()
        """What a server listens with."""
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called by OpenSSL at the beginning of each connection."""
        state = self._files()
        if state != self._state:
            # Once for each change: a broken file is not read for every client.
            self._state = state
            self._reload()
        connection.context = self._current

    def _reload(self) -> None:
        try:
            self._current = self._load()
        except (OSError, ValueError) as error:
            log.warning("certificate %s can't be used: %s; the one before stays", self._certificate, error)
        else:
            log.info("certificate %s was read again", self._certificate)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Without a password here, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(self._certificate, self._key, password="")
        return context

    def _files(self) -> list[FileState | None]:
        return [file_state(path) for path in (self._certificate, self._key)]
