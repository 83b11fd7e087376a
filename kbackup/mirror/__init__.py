"""Mirrors: MirrorMaker 2 (KIP-382) by way of an archive. `flow` holds the values that all modules share."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING

from kbackup.systems import System, SystemPage

if TYPE_CHECKING:
    from kbackup.archive.catalog.state import RetentionHold
    from kbackup.archive.verify.findings import Findings
    from kbackup.schemas.decoder import Decoder
    from kbackup.store.base import Store


class MirrorSystem(System):
    """Mirrors: `expire` keeps what flows still have to read, and records of MirrorMaker 2's topics are decoded."""

    package = __name__
    command = "mirror"
    summary = "Mirror clusters by MirrorMaker 2's properties file."

    def retention_holds(self, store: Store, archive_id: str, grace: timedelta) -> list[RetentionHold]:
        from kbackup.mirror.status import flow_holds

        return flow_holds(store, archive_id, grace)

    def record_decoder(self, topic: str, part: str) -> Decoder | None:
        from kbackup.mirror.records import decoder_of

        return decoder_of(topic, part)

    def check_files(self, store: Store, keys: Collection[str], findings: Findings) -> None:
        from kbackup.mirror.files import check_files

        check_files(store, keys, findings)

    def page(self) -> SystemPage:
        from kbackup.mirror.page import PAGE

        return PAGE


SYSTEM = MirrorSystem()
