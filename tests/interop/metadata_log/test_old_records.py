"""Records that Kafka 3.9 writes only where its log is old, or where a controller died within a transaction.

The table of schemas has one more version that no log can have: LeaderChangeMessage 1. Kafka 3.9 and 4.4 write version 0
whatever kraft.version is (ControlRecordUtils.LEADER_CHANGE_CURRENT_VERSION); `test_dump` checks this in a log of
kraft.version 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbackup.migrate.metadata_log.codec import MetadataRecord, record
from kbackup.migrate.metadata_log.image import read_metadata_log
from kbackup.migrate.metadata_log.log import encode_batch, read_segment
from scripts.dev.kafka import Broker
from tests.interop.metadata_log.cluster import KAFKA_3, dump, files_of
from tests.support.metadata_records import check_as_printed, check_encoding, write_segment

FENCED = {"UnfenceBrokerRecord", "FenceBrokerRecord"}
ABORTED = {"BeginTransactionRecord", "AbortTransactionRecord"}


class OldCluster(Broker):
    """One node of 3.9, broker and controller. Its log has no level of metadata.version at first, as logs of Kafka 3.0
    to 3.2: controllers write what these understood."""

    def __init__(self) -> None:
        super().__init__(jars=KAFKA_3.jars)

    @property
    def log(self) -> Path:
        return self.folder / "node-0" / "data" / "__cluster_metadata-0"

    def append(self, *records: MetadataRecord) -> None:
        """Write a batch behind the last one, as the last leader: what it wrote before it died."""
        path = max(self.log.glob("*.log"))
        *_, last = read_segment(path)
        with path.open("ab") as file:
            file.write(encode_batch(last.last_offset + 1, last.epoch, last.timestamp, records))

    def _format(self, node: int, properties: Path, *arguments: str) -> None:
        super()._format(node, properties, *arguments)
        self.log.mkdir()
        write_segment(self.log, 0, [_config("log.cleaner.threads", "2")])


def _config(name: str, value: str) -> MetadataRecord:
    return record("ConfigRecord", {"resourceType": 4, "resourceName": "", "name": name, "value": value})


@pytest.fixture(scope="module")
def lived() -> Iterator[OldCluster]:
    """Stopped after its life: started with the old log, upgraded, stopped, and started again within a transaction."""
    with OldCluster() as cluster:
        upgrade = ("--bootstrap-server", cluster.bootstrap, "upgrade", "--metadata", "3.9")
        cluster.restart()
        KAFKA_3.run("org.apache.kafka.tools.FeatureCommand", *upgrade)
        cluster.stop()
        begun = record("BeginTransactionRecord", {"name": "never ended"})
        cluster.append(begun, _config("message.max.bytes", "2000000"))
        cluster.start()
        cluster.stop()
        yield cluster


def test_every_record_is_as_kafka_prints_it(lived: OldCluster) -> None:
    files = files_of(lived.log)
    names = check_as_printed(files, dump(KAFKA_3, files))
    assert names >= FENCED | ABORTED | {"BrokerRegistrationChangeRecord"}
    check_encoding(files)


def test_a_fenced_broker_is_not_alive(lived: OldCluster) -> None:
    (broker,) = (each for each in read_metadata_log(lived.log).registrations or () if each.role == "broker")
    assert not broker.alive


def test_records_of_an_aborted_transaction_have_no_effect(lived: OldCluster) -> None:
    configs = [(config.name, config.value) for config in read_metadata_log(lived.log).broker_configs or ()]
    assert configs == [("log.cleaner.threads", "2")]
