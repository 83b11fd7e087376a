"""A fresh cluster that starts with what another cluster's metadata log holds."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kbackup.metadata.entities import Reading
from kbackup.migrate.metadata_log.checkpoint import producer_id_record, quota_records, scram_record, token_record
from kbackup.migrate.metadata_log.codec import MetadataRecord
from kbackup.migrate.metadata_log.image import read_metadata_log
from tests.interop.metadata_log.cluster import KAFKA_4, Cluster, quotas_and_users
from tests.interop.metadata_log.conftest import Changed
from tests.support.java import Java


def _records(reading: Reading) -> list[MetadataRecord]:
    return [
        *map(scram_record, reading.scram_users or ()),
        *(record for quota in reading.client_quotas or () for record in quota_records(quota)),
        *map(token_record, reading.delegation_tokens or ()),
        producer_id_record(reading.next_producer_id or 0),
    ]


def test_users_log_in_with_their_old_passwords(changed_3: Changed, java: Java) -> None:
    old = read_metadata_log(changed_3.folder)
    with Cluster(KAFKA_4, 1, added=_records(old)) as fresh:
        id_ = AdminClient(fresh.client(log_level=0)).list_topics(timeout=30).cluster_id
        for user, password, mechanism in (
            ("b o%b", "p aäss%wörd", "SCRAM-SHA-512"),
            ("alice", "alice's", "SCRAM-SHA-256"),
        ):
            admin = AdminClient(fresh.scram(user, password, mechanism))
            assert admin.list_topics(timeout=30).cluster_id == id_
        with pytest.raises(KafkaException):
            AdminClient(fresh.scram("alice", "another", "SCRAM-SHA-256")).list_topics(timeout=3)
        sasl = fresh.bootstrap_of("SASL")
        assert java.run("MetadataChanges", "token", sasl, changed_3.token, changed_3.hmac).strip() == id_
        listed = quotas_and_users(fresh.bootstrap)
        fresh.stop()
        new = read_metadata_log(fresh.metadata_log_dir)
    assert listed == changed_3.listed
    assert len(listed) == 8  # six entities with quotas, two users
    assert new.scram_users == old.scram_users
    assert new.client_quotas == old.client_quotas
    assert new.delegation_tokens == old.delegation_tokens
    assert new.next_producer_id == old.next_producer_id
