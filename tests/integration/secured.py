"""kbackup on a broker that asks who is there: ways to come as a user, and commands with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from scripts.dev.secured import SecuredBroker
from tests.integration.conftest import Outcome, run_command
from tests.support.secrets import make

RECORDS = 60
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""The settings of a broker with ACLs, where everybody without login may do everything."""
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class Command:
    """`python -m kbackup` in this process, on the session's Spark, with a configuration of its own. Its archive is a
    folder beside it."""

    spark: SparkSession
    folder: Path

    @property
    def archive(self) -> str:
        return str(self.folder / "archive")

    def __call__(self, *arguments: str) -> Outcome:
        return run_command(self.spark, self.folder / "kbackup.toml", arguments)

    def must(self, *arguments: str) -> Outcome:
        outcome = self(*arguments)
        assert outcome.code == 0, f"{outcome.err}\n{outcome.document}"
        return outcome


def section(name: str, properties: Mapping[str, str]) -> str:
    """A table of a configuration file."""
    return f"[{name}]\n" + "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in properties.items())


def command(
    spark: SparkSession, folder: Path, source: Mapping[str, str], target: Mapping[str, str] | None = None
) -> Command:
    """With these properties of the source, and of the target: by default the same."""
    clusters = section("source", source) + section("target", source if target is None else target)
    (folder / "kbackup.toml").write_text(f"archive = {json.dumps(str(folder / 'archive'))}\n{clusters}")
    return Command(spark, folder)


def fill(broker: SecuredBroker, topic: str, records: int = RECORDS) -> None:
    """A topic of two partitions."""
    broker.create_topic(topic, partitions=2)
    producer = Producer(broker.client(log_level=0))
    for number in range(records):
        producer.produce(topic, f"value {number}", str(number), number % 2, headers={"n": str(number)})
    assert producer.flush(60) == 0


def java(properties: Mapping[str, str], folder: Path) -> Path:
    """The same as Kafka's own tools take it."""
    renamed = {
        "ssl.ca.pem": "ssl.truststore.certificates",
        "ssl.certificate.pem": "ssl.keystore.certificate.chain",
        "ssl.key.pem": "ssl.keystore.key",
    }
    lines = {renamed.get(name, name): value for name, value in properties.items()}
    if "sasl.username" in lines:
        user, password = lines.pop("sasl.username"), lines.pop("sasl.password")
        lines["sasl.jaas.config"] = f'{_SCRAM} required username="{user}" password="{password}";'
    if "enable.sasl.oauthbearer.unsecure.jwt" in lines:
        del lines["enable.sasl.oauthbearer.unsecure.jwt"]
        user = lines.pop("sasl.oauthbearer.config").removeprefix("principal=")
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        lines["sasl.jaas.config"] = f'{module} required unsecuredLoginStringClaim_sub="{user}";'
    if "ssl.truststore.certificates" in lines:
        lines["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.key" in lines:
        lines["ssl.keystore.type"] = "PEM"
    file = folder / "client.properties"
    text = (f"{name}={value}".replace("\n", "\\\n  ") for name, value in lines.items())
    file.write_text("".join(f"{line}\n" for line in text))
    return file


def password() -> str:
    return make("a SCRAM user's password")
