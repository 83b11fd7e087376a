"""Versions, principals and logins, as the preflight reads them from properties."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

from kbackup.jobs.migrate import preflight
from kbackup.jobs.migrate import preflight as of_brokers
from tests.support.healthy_cluster import broker_configs, controller
from tests.support.preflights import JAAS, MAP, line


def test_names_of_metadata_versions_are_kafkas() -> None:
    names = {8: "3.4-IV0", 14: "3.6-IV2", 15: "3.7-IV0", 19: "3.7-IV4", 20: "3.8-IV0", 21: "3.9-IV0"}
    for level, name in names.items():
        assert (of_brokers.level_of(name), of_brokers.level_name(level)) == (level, name)
    assert [of_brokers.level_of(short) for short in ("3.3", "3.5", "3.7", "3.9")] == [7, 11, 19, 21]
    assert [of_brokers.level_of(other) for other in ("2.8", "4.0", "newest")] == [None, None, None]


def test_principal_of_a_certificate(tmp_path: Path) -> None:
    """In a PEM file after its key, in PKCS12, and unknown in a file of another type."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name.from_rfc4514_string("CN=controller-1,OU=ops\\, eu,O=Example")
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder(
        name, name, key.public_key(), 1, now, now + datetime.timedelta(1)
    ).sign(key, hashes.SHA256())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem += certificate.public_bytes(Encoding.PEM)
    files = {
        "c.pem": pem,
        "c.p12": serialize_key_and_certificates(
            b"c", key, certificate, None, BestAvailableEncryption(b"hush")
        ),
        "c.jks": b"\xfe\xed\xfe\xed",
    }
    principals = {}
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
        principals[file] = preflight.principal_of(
            {
                "controller.listener.names": "CONTROLLER",
                MAP: "CONTROLLER:SSL",
                "listener.name.controller.ssl.client.auth": "required",
                "listener.name.controller.ssl.keystore.location": str(tmp_path / file),
                "ssl.keystore.password": "hush",
            }
        )
    principal = "User:CN=controller-1,OU=ops\\, eu,O=Example"
    assert principals == {"c.pem": principal, "c.p12": principal, "c.jks": None}


def test_principals_that_only_the_controller_knows_are_not_looked_at() -> None:
    for unknown in (
        {MAP: "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_SSL"},
        {"ssl.client.auth": "required", "ssl.keystore.location": "/nowhere"},
        {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:x"},
        {"principal.builder.class": "com.example.Builder"},
    ):
        assert line(controller(dict(unknown)), preflight.SUPER_USERS).status == "not looked at", unknown


def test_a_login_from_a_file_of_the_jvm_is_not_looked_at() -> None:
    base = controller({JAAS: None})
    both = replace(base, brokers=broker_configs({JAAS: None}, of=(1, 2)).brokers)
    assert line(both, preflight.LOGIN).status == "not looked at"
