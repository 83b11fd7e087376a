"""Around a cluster's migration from ZooKeeper to KRaft (KIP-866): readiness, state, archive, comparison, way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbackup.systems import MetadataSource, System, SystemPage

if TYPE_CHECKING:
    from kbackup.metadata.sources import Sources


class MigrateSystem(System):
    """Migrations: ZooKeeper and the metadata log are sources of a cluster's metadata, in backups as well."""

    package = __name__
    command = "migrate"
    summary = "Check, watch and archive a migration from ZooKeeper to KRaft."

    def metadata_sources(self, sources: Sources) -> Iterator[MetadataSource]:
        from kbackup.migrate.sources import metadata_sources

        return metadata_sources(sources)

    def page(self) -> SystemPage:
        from kbackup.migrate.page import make_page

        return make_page()


SYSTEM = MigrateSystem()
