"""`archive.serve()` of the library, and folders of the Java tool."""

from __future__ import annotations

from pathlib import Path

import pytest

import kbackup
from kbackup.errors import UsageError
from kbackup.store import open_store
from tests.golden.java_archive import PARTITIONS, ROOT
from tests.support.archives import make_archive
from tests.support.truth import in_archive, log_ends, read_topic


def test_a_program_serves_an_archive_for_a_while(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    archive = kbackup.open_archive(store.url)
    truth = {tp.partition: records for tp, records in in_archive(store).items() if tp.topic == "orders"}
    with archive.serve(topics=["orders"]) as bootstrap_servers:
        assert read_topic(bootstrap_servers, "orders") == truth
    with archive.at(restore_point=1).serve() as bootstrap_servers:
        assert log_ends(bootstrap_servers, "orders") == {0: 10, 1: 12, 2: 0}
        assert len(read_topic(bootstrap_servers, "clicks")[0]) == 20


def test_a_program_is_refused_as_the_command_is(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    archive = kbackup.open_archive(store.url)
    with pytest.raises(UsageError, match="there is no topic nobody"), archive.serve(topics=["nobody"]):
        pass
    with pytest.raises(UsageError, match="reached from other machines"), archive.serve(listen="0.0.0.0:0"):
        pass


def test_a_folder_of_the_java_tool_is_served() -> None:
    archive = kbackup.open_archive(str(ROOT / "archive"))
    with archive.serve() as bootstrap_servers:
        for partition in PARTITIONS:
            found = read_topic(bootstrap_servers, partition.topic)[partition.number]
            assert found == partition.truth(), partition
