"""The metadata logs of clusters of both releases, after every change that an admin client can make."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kbackup.migrate.metadata_log.codec import record
from tests.interop.metadata_log.cluster import KAFKA_3, KAFKA_4, Cluster, Release, files_of, quotas_and_users
from tests.support.java import Java, compiled


class Changed(NamedTuple):
    """A stopped cluster: its release, metadata.log.dir, a delegation token, and the output of Kafka's tools."""

    release: Release
    folder: Path
    token: str
    hmac: str
    listed: list[str]
    """Its quotas and users, by kafka-configs."""

    @property
    def log(self) -> Path:
        return self.folder / "__cluster_metadata-0"

    @property
    def files(self) -> list[Path]:
        return files_of(self.log) + files_of(self.folder)


@pytest.fixture(scope="package")
def java() -> Iterator[Java]:
    with compiled("MetadataChanges.java") as made:
        yield made


@pytest.fixture(scope="package")
def changed_3(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Changed:
    return _change(KAFKA_3, java, tmp_path_factory.mktemp("kafka-3"))


@pytest.fixture(scope="package")
def changed_4(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Changed:
    return _change(KAFKA_4, java, tmp_path_factory.mktemp("kafka-4"))


@pytest.fixture(params=["changed_3", "changed_4"])
def changed(request: pytest.FixtureRequest) -> Changed:
    made = request.getfixturevalue(request.param)
    assert isinstance(made, Changed)
    return made


_GONE = 9
"""The id of a controller that is registered in the log, and never starts."""


def _change(release: Release, java: Java, folder: Path) -> Changed:
    gone = [record("RegisterControllerRecord", {"controllerId": _GONE})] if release is KAFKA_4 else []
    with Cluster(release, 2, added=gone) as cluster:
        plain, sasl = (cluster.bootstrap_of(name).split(",")[0] for name in ("CLIENT", "SASL"))
        if gone:
            # First: no feature changes while a controller is registered that does not support it.
            java.run("MetadataChanges", "unregister-controller", plain, str(_GONE))
        token, hmac = java.run("MetadataChanges", "change", plain, sasl).split()
        listed = quotas_and_users(plain)
        cluster.stop(1)
        java.run("MetadataChanges", "unregister", plain, "2")
        cluster.stop()
        (folder / "__cluster_metadata-0").mkdir()
        for path in files_of(cluster.metadata_log_dir / "__cluster_metadata-0"):
            shutil.copy(path, folder / "__cluster_metadata-0")
        for path in (*cluster.metadata_log_dir.glob("*.checkpoint"), cluster.metadata_log_dir / "meta.properties"):
            shutil.copy(path, folder)
    return Changed(release, folder, token, hmac, listed)
