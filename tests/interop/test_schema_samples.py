"""What the serializers of Java and Python write, those of both read: the judges of restored schemas."""

from __future__ import annotations

import secrets

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

from scripts.dev.kafka import Broker
from scripts.dev.registry import Apicurio
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.schema_samples import formats, java_read, produce_samples, python_read, rows_of


def test_both_read_what_each_writes(broker: Broker, apicurio: Apicurio) -> None:
    prefix = f"s{secrets.token_hex(4)}-"
    written = produce_samples(broker.bootstrap, apicurio, f"{prefix}p-")
    written += produce_samples(broker.bootstrap, apicurio, f"{prefix}j-", java=True)
    expected, topics = rows_of(written), formats(f"{prefix}p-") | formats(f"{prefix}j-")
    assert sum(map(len, expected.values())) == 2 * 16
    assert java_read(broker.bootstrap, apicurio, topics) == expected
    assert python_read(broker.bootstrap, apicurio.url, topics) == expected
    with ConfluentRegistry() as other:
        with pytest.raises(SchemaRegistryError):
            python_read(broker.bootstrap, other.url, topics)
        _copy(apicurio.url, other)
        assert python_read(broker.bootstrap, other.url, topics) == expected


def _copy(url: str, registry: ConfluentRegistry) -> None:
    """Put all schemas there under their own ids."""
    client = SchemaRegistryClient({"url": url})
    for subject in client.get_subjects():
        for number in client.get_versions(subject):
            found = client.get_version(subject, number)
            registry.put(subject, number, int(found.schema_id or 0), found.schema.to_dict())
