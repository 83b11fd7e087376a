"""TLS and SASL against a broker that asks for them: each way in serves every command, and each wrong one is told."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kbackup.kafka.consume import RangeReader
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.produce import BlockProducer
from kbackup.native.contract import CommittedProgress
from kbackup.spark.jvm import REDACTION
from kbackup.types import OffsetRange, TopicPartition
from scripts.dev.secured import Authority, SecuredBroker
from tests.integration.conftest import Choose
from tests.integration.secured import RECORDS, Command, command, fill, java, password
from tests.support.secrets import know, make
from tests.support.truth import assert_restored, read_topic
from tests.support.watching import proc

USER = "operator"
EVERYTHING = (("topic", "*"), ("group", "*"), ("transactional_id", "*"), ("broker", "kafka-cluster"))
Way = Callable[["Operator", Path], Mapping[str, str]]
PASSWORD_HINT = "is sasl.mechanism right, and are user and password, or the token?"
TLS_HINT = "is ssl.ca.location the authority"
CALLBACK_HINT = "check the function that [source] kbackup.oauth.callback names"


class Operator:
    """A user who may do everything, by each way in."""

    def __init__(self, broker: SecuredBroker) -> None:
        self.broker = broker
        self.password = password()
        broker.add_user(USER, self.password)
        for kind, name in EVERYTHING:
            broker.allow(USER, "all", kind, name)

    def scram(self, folder: Path) -> Mapping[str, str]:
        return self.broker.scram(USER, self.password)

    def token(self, folder: Path) -> Mapping[str, str]:
        return self.broker.token(USER)

    def callback(self, folder: Path, name: str = "good") -> Mapping[str, str]:
        """A function of ours gives the token."""
        return self.broker.oauth() | {
            "kbackup.oauth.callback": f"tests.integration.tokens:{name}",
            "sasl.oauthbearer.config": f"{USER} {make('what is in a token')}",
        }

    def certificate(self, folder: Path) -> Mapping[str, str]:
        """Inline."""
        properties = self.broker.certificate(USER)
        know("a client's private key", properties["ssl.key.pem"].splitlines()[1])
        return properties

    def certificate_files(self, folder: Path) -> Mapping[str, str]:
        properties = dict(self.certificate(folder))
        for name in ("ssl.ca", "ssl.certificate", "ssl.key"):
            file = folder / f"{name}.pem"
            file.write_text(properties.pop(f"{name}.pem"))
            properties[f"{name}.location"] = str(file)
        return properties


@pytest.fixture(scope="module")
def operator(secured_broker: SecuredBroker) -> Operator:
    return Operator(secured_broker)


@pytest.fixture(scope="module")
def topic(secured_broker: SecuredBroker) -> str:
    name = f"orders-{secrets.token_hex(4)}"
    fill(secured_broker, name)
    return name


def serves(kbackup: Command, broker: SecuredBroker, topic: str, *config: str) -> None:
    """Every command does its work."""
    source, target = ([f"--source-config={file}" for file in config], [f"--target-config={file}" for file in config])
    only = ("--topic", topic)
    prefix = f"{secrets.token_hex(3)}."
    checked = kbackup.must("check", "--target", *only, *source, *target)
    assert {step["status"] for step in checked.document["steps"]} <= {"ok", "warning"}
    backup = kbackup.must("backup", *only, *source)
    assert backup.document["totals"]["records"] == RECORDS
    kbackup.must("verify", "--quick", kbackup.archive)
    kbackup.must("restore", kbackup.archive, "--map-regex", f"^={prefix}", "--no-groups", *target)
    assert_restored(read_topic(broker.bootstrap, topic), read_topic(broker.bootstrap, prefix + topic))


@pytest.mark.parametrize("way", ["scram", "token", "callback", "certificate", "certificate_files"])
def test_each_way_in_serves_every_command(
    way: str, operator: Operator, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    properties = getattr(operator, way)(tmp_path)
    serves(command(spark, tmp_path, properties), operator.broker, topic)


@pytest.mark.parametrize("way", ["scram", "token", "certificate"])
def test_client_properties_of_java_serve_as_well(
    way: str, operator: Operator, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    file = java(getattr(operator, way)(tmp_path), tmp_path)
    serves(command(spark, tmp_path, {}), operator.broker, topic, str(file))


def test_a_callback_serves_message_objects_too(operator: Operator, topic: str, tmp_path: Path, choose: Choose) -> None:
    choose("python")
    properties = operator.callback(tmp_path)
    assert Cluster(properties, "source").connect()[1] == 1
    first = OffsetRange(topic, 0, 0, RECORDS // 2)
    reader = RangeReader(properties, "read_committed", "kbackup-backup-test", 30)
    blocks = [block for _, block in reader.read([first])]
    reader.close()
    assert sum(map(len, blocks)) == RECORDS // 2
    name = f"{topic}.again"
    operator.broker.create_topic(name)
    tp = TopicPartition(name, 0)
    producer = BlockProducer(properties, f"kbackup-{name}", f"kbackup-restore-{name}")
    producer.start([tp])
    for block in blocks:
        producer.send(tp, block)
    producer.flush()
    producer.commit({tp: CommittedProgress(RECORDS, "")})
    producer.close()
    assert len(read_topic(operator.broker.bootstrap, name)[0]) == RECORDS // 2


def wrong_name(operator: Operator, folder: Path) -> Mapping[str, str]:
    """The broker's certificate has its address alone."""
    properties = operator.scram(folder)
    return {**properties, "bootstrap.servers": properties["bootstrap.servers"].replace("127.0.0.1", "localhost")}


def strange_certificate(operator: Operator, folder: Path) -> Mapping[str, str]:
    issued = Authority("somebody else").issue(USER)
    return {**operator.certificate(folder), "ssl.certificate.pem": issued.certificate, "ssl.key.pem": issued.key}


def no_certificate(operator: Operator, folder: Path) -> Mapping[str, str]:
    properties = operator.certificate(folder)
    return {name: value for name, value in properties.items() if "certificate" not in name and "key" not in name}


def scram(user: str, secret: str) -> Way:
    return lambda operator, folder: operator.broker.scram(user, make(secret))


def scram_but(more: Callable[[], Mapping[str, str]]) -> Way:
    return lambda operator, folder: {**operator.scram(folder), **more()}


def callback(name: str) -> Way:
    return lambda operator, folder: operator.callback(folder, name)


WAYS: dict[str, tuple[Way, str, str]] = {
    "wrong password": (scram(USER, "a wrong password"), "SCRAM-SHA-512", PASSWORD_HINT),
    "no such user": (scram("nobody", "nobody's password"), "SCRAM-SHA-512", PASSWORD_HINT),
    "mechanism that is not enabled": (scram_but(lambda: {"sasl.mechanism": "PLAIN"}), "PLAIN", PASSWORD_HINT),
    "wrong authority": (
        scram_but(lambda: {"ssl.ca.pem": Authority("somebody else").certificate}),
        "certificate verify failed",
        TLS_HINT,
    ),
    "certificate of another host": (wrong_name, "certificate verify failed", TLS_HINT),
    "certificate of another authority": (strange_certificate, "SSL", TLS_HINT),
    "no certificate": (no_certificate, "SSL", TLS_HINT),
    "expired token": (callback("lying"), "invalid_token", PASSWORD_HINT),
    "known to be expired": (callback("out_of_date"), "its token expired 60 s ago", CALLBACK_HINT),
    "failing function": (callback("failing"), "raised PermissionError: the identity provider says no", CALLBACK_HINT),
    "strange function": (callback("strange"), "its answer is not (token, expiry", CALLBACK_HINT),
}


@pytest.mark.parametrize(("way", "message", "hint"), WAYS.values(), ids=WAYS)
def test_denied_access_names_its_cause(
    way: Way, message: str, hint: str, operator: Operator, spark: SparkSession, tmp_path: Path
) -> None:
    kbackup = command(spark, tmp_path, way(operator, tmp_path))
    for name in ("check", "backup"):
        outcome = kbackup(name)
        assert outcome.code == 14, f"{outcome.err}\n{outcome.document}"
        error = outcome.document.get("error") or next(
            {"message": step["detail"], "hint": step["hint"]}
            for step in outcome.document["steps"]
            if step["status"] == "failed"
        )
        assert "source cluster at " in error["message"]
        assert message in error["message"]
        assert hint in error["hint"]
        assert "Traceback" not in outcome.err
    assert not (tmp_path / "archive" / "backups").exists()


def test_secrets_stay_where_they_are(
    operator: Operator, topic: str, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Logs of every level hold no secret. The end of the session searches all output a second time."""
    secret = operator.password
    noisy = {"debug": "all", "log_level": "7"}
    kbackup = command(spark, tmp_path, {**operator.scram(tmp_path), **noisy})
    outputs = [kbackup.must(name, "-t", topic, "-vv", "--debug") for name in ("check", "backup")]
    outputs.append(kbackup.must("config"))
    wrong = {**noisy, **operator.callback(tmp_path, "failing")}
    outputs.append(command(spark, tmp_path, wrong)("backup", "-vv", "--debug"))
    (token_secret,) = [line for line in wrong["sasl.oauthbearer.config"].split() if line != USER]
    console = capfd.readouterr()
    for text in (*(o.err + json.dumps(o.document) for o in outputs), console.out, console.err):
        assert secret not in text
        assert token_secret not in text
    for file in (tmp_path / "archive").rglob("*"):
        assert file.is_dir() or secret.encode() not in file.read_bytes()
    for process in Path("/proc").glob("[0-9]*"):  # the JVM and the Python workers are among them
        told = proc(process.name, "environ") + proc(process.name, "cmdline")
        assert secret.encode() not in told
        assert token_secret.encode() not in told


def test_a_secret_of_sparks_settings_is_on_no_command_line(spark: SparkSession) -> None:
    name = "spark.hadoop.fs.s3a.secret.key"
    secret = spark.sparkContext.getConf().get(name)
    assert secret is not None, "Spark itself has it"
    assert spark._jsc.hadoopConfiguration().get(name.removeprefix("spark.hadoop.")) == secret
    lines = [proc(process.name, "cmdline") for process in Path("/proc").glob("[0-9]*")]
    # the expression that tells names of secrets is none itself
    jvm = [line.replace(REDACTION.encode(), b"") for line in lines if b"spark.app.name=kbackup" in line]
    assert jvm, "Spark's JVM has its settings on its command line"
    assert not [line for line in jvm if secret.encode() in line or b"secret" in line]
