"""No secret is ever shown: in representations, in messages, on the command line."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from rich.console import Console

from kbackup.cli import main
from kbackup.config import HIDDEN, KEYS, Config, ConfigFiles, Setting, SettingOrigin, exposes_secret, load
from kbackup.config.secrets import is_secret, redact
from kbackup.errors import KbackupError, UsageError, without_credentials

SECRETS = [
    *("source.sasl.password", "target.sasl.password", "source.ssl.key.password", "source.ssl.key.pem"),
    *("source.ssl.keystore.password", "source.ssl.keystore.key", "source.sasl.jaas.config"),
    *("source.sasl.oauthbearer.config", "source.sasl.oauthbearer.client.secret", "source.sasl.oauthbearer.extensions"),
    "source.sasl.oauthbearer.assertion.private.key.passphrase",
    "source.sasl.oauthbearer.assertion.private.key.pem",
    *("source.zookeeper.sasl.password", "source.zookeeper.ssl.keystore.password"),
    *("s3.secret_access_key", "s3.session_token", "spark.conf.spark.hadoop.fs.s3a.secret.key"),
    *("spark.conf.spark.ssl.keyPassword", "spark.conf.spark.authenticate.secret"),
    "spark.conf.spark.hadoop.fs.s3a.encryption.key",
    "spark.conf.spark.hadoop.fs.s3a.bucket.mine.encryption.key",
    "spark.conf.spark.hadoop.fs.s3a.server-side-encryption.key",
    "spark.conf.spark.hadoop.fs.azure.account.key.mine.dfs.core.windows.net",
    "spark.conf.spark.hadoop.fs.azure.sas.container.mine.blob.core.windows.net",
    "spark.conf.spark.hadoop.fs.gs.auth.service.account.private.key",
    *("azure.account_key", "azure.sas_token", "azure.connection_string"),
    *(
        f"spark.conf.{place}.{name}"
        for place in ("spark.executorEnv", "spark.yarn.appMasterEnv", "spark.kubernetes.driverEnv")
        for name in (
            *("AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET"),
            *("KBACKUP_AZURE_ACCOUNT_KEY", "KBACKUP_AZURE_CONNECTION_STRING", "KBACKUP_ENCRYPTION_KEY", "ARCHIVE_KEY"),
            *("AWS_SECRET_ACCESS_KEY", "KBACKUP_NOTIFY_URL", "KBACKUP_NOTIFY_BODY", "DB_PWD", "GIT_AUTH"),
            *("KBACKUP_SOURCE_SASL_JAAS_CONFIG", "KBACKUP_SOURCE_SASL_OAUTHBEARER_CONFIG", "BLOB_SAS"),
        )
    ),
    *("encryption.key", "ui.token", "notify.url", "notify.headers.Authorization"),
]
JAVA = {"source.ssl.keystore.key", "source.sasl.jaas.config"}
"""Properties that librdkafka does not have."""

BESIDE = {
    "s3.access_key_id": "id",
    "source.zookeeper.connect": "zk:2181",
    "source.zookeeper.sasl.username": "me",
    "source.zookeeper.ssl.client.enable": "true",
}
"""The settings that some of the secrets require."""

OPEN = [
    *("source.bootstrap.servers", "source.ssl.key.location", "source.ssl.ca.pem", "source.ssl.certificate.pem"),
    *("source.sasl.oauthbearer.token.endpoint.url", "source.sasl.oauthbearer.client.id", "s3.access_key_id"),
    *("spark.conf.spark.executorEnv.KBACKUP_KERNEL", "spark.conf.spark.executorEnv.PYTHONSAFEPATH"),
    *("spark.conf.spark.executorEnv.AWS_WEB_IDENTITY_TOKEN_FILE", "spark.conf.spark.executorEnv.AWS_ACCESS_KEY_ID"),
    *("spark.conf.spark.hadoop.fs.s3a.aws.credentials.provider", "gcs.credentials_file", "source.sasl.mechanism"),
    *("s3.sse_kms_key_id", "restore.map.password-resets", "restore.map_group.token-service", "backup.topics"),
]


@pytest.mark.parametrize(
    ("path", "value", "exposed"),
    [
        ("source.sasl.password", "hunter2", True),
        ("source.sasl.password", "${env:PASSWORD}", False),
        ("source.sasl.password", "file:/etc/password", True),  # no reference there, but the password
        ("source.sasl.username", "backup", False),
        ("encryption.key", "file:/etc/kbackup/archive.key", False),
        ("encryption.key", "env:ARCHIVE_KEY", False),
        ("encryption.key", "command:unwrap --token hunter2", True),
    ],
)
def test_secrets_that_a_command_line_exposes(path: str, value: str, exposed: bool) -> None:
    assert exposes_secret(path, value) is exposed


def test_secret_keys_are_told_from_plain_ones() -> None:
    shown = [path for path in SECRETS if not is_secret(path)]
    assert not shown, f"secrets that are taken for plain settings: {shown}"
    hidden = [path for path in OPEN if is_secret(path)]
    assert not hidden, f"plain settings that are taken for secrets: {hidden}"
    assert {path for path in KEYS if is_secret(path)} == {
        *("s3.secret_access_key", "s3.session_token", "encryption.key", "ui.token"),
        *("azure.account_key", "azure.sas_token", "azure.connection_string"),
        *("notify.url", "notify.headers", "notify.body"),
        *(
            f"{section}.{name}"
            for section in ("schema_registry", "target_schema_registry")
            for name in ("password", "token", "client_key_password")
        ),
    }


WEBHOOK = {"notify.url": "https://hooks.example.com/hush"}
SETTINGS = {path: f"hush-{path}" for path in SECRETS if path not in JAVA} | BESIDE | WEBHOOK
"""Every secret is a text with "hush" in it."""


@pytest.mark.parametrize("how", [[], ["--json"], ["-v"], ["--debug"]])
def test_config_shows_that_they_are_set(how: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    flags = [word for path, value in SETTINGS.items() for word in ("--set", f"{path}={value}")]
    assert main(["config", *flags, *how]) == 0
    out, err = capsys.readouterr()
    assert "hush" not in out + err
    assert out.count(HIDDEN) == len(SECRETS) - len(JAVA)


@pytest.mark.parametrize("path", sorted(JAVA))
def test_refused_properties_are_not_shown(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--set", f"{path}=hush"]) == 2
    out, err = capsys.readouterr()
    assert f"flag --set: {path}: librdkafka " in err
    assert "hush" not in out + err


def test_no_representation_of_the_settings_shows_a_secret() -> None:
    settings = [Setting(path, value, SettingOrigin("flag")) for path, value in SETTINGS.items()]
    config = load(settings, ConfigFiles(), {}).config
    assert config.source["sasl.password"] == "hush-source.sasl.password"
    with Console().capture() as shown:
        Console(width=500).print(config)
    for text in (repr(config), str(config), f"{config!r}", shown.get()):
        assert "hush-source" not in text
        assert "secret_access_key='hush" not in text
        assert "hush-s3.se" not in text
    assert pickle.loads(pickle.dumps(config)) == config
    assert "Config(" in repr(Config())


def test_redact_goes_into_nested_mappings_and_urls() -> None:
    given = {
        "source": {"sasl": {"password": "hush"}, "sasl.password": "hush", "client.id": "me"},
        "archive": "s3://user:hush@host/x",
        "plain": "s3://bucket/a@b:c",
        "password": None,
        "list": ["https://u:hush@h", 1],
        "token": None,
        "registry": "https://hush@h:1/a,http://u:hush@h",
        "at": "https://u:hush@hush@h/a?b=c@d",
        "table": "abfss://container@mine.dfs.core.windows.net/a",
    }
    assert redact(given) == {
        "source": {"sasl": {"password": HIDDEN}, "sasl.password": HIDDEN, "client.id": "me"},
        "archive": f"s3://user:{HIDDEN}@host/x",
        "plain": "s3://bucket/a@b:c",
        "password": None,
        "list": [f"https://u:{HIDDEN}@h", 1],
        "token": None,
        "registry": f"https://{HIDDEN}@h:1/a,http://u:{HIDDEN}@h",
        "at": f"https://u:{HIDDEN}@h/a?b=c@d",
        "table": "abfss://container@mine.dfs.core.windows.net/a",
    }
    assert redact({"map": {"password": "new"}}, "restore") == {"map": {"password": "new"}}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "https://a.blob.core.windows.net/c?sp=r&sig=hu%2Fsh&se=1",
            f"https://a.blob.core.windows.net/c?sp=r&sig={HIDDEN}&se=1",
        ),
        ("az://a/c/p?sig=hush: 404", f"az://a/c/p?sig={HIDDEN} 404"),
        ("'url: /x?upload_id=hush (Caused by'", f"'url: /x?upload_id={HIDDEN} (Caused by'"),
        ("s3://b/p?X-Amz-Signature=hush", f"s3://b/p?X-Amz-Signature={HIDDEN}"),
        ("AccountName=a;AccountKey=hush==;Endpoint=b", f"AccountName=a;AccountKey={HIDDEN};Endpoint=b"),
        ("http://registry/?key=hush&token=hush", f"http://registry/?key={HIDDEN}&token={HIDDEN}"),
        ("configsig=1 design=2 key=3", "configsig=1 design=2 key=3"),
    ],
)
def test_no_text_shows_a_signed_address(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    assert without_credentials(shown) == shown
    assert KbackupError(text, text).message == KbackupError(text, text).hint == shown


@pytest.mark.parametrize("how", [[], ["--json"], ["-v"], ["--debug"]])
@pytest.mark.parametrize(
    "address",
    [
        "https://acct.blob.core.windows.net/cont?sp=r&sig=hush",
        "az://acct/cont/p?sp=r&sig=hush",
        "az://acct/cont?sp=r&sig=hush",
        "abfss://cont@acct.dfs.core.windows.net/p?sig=hush",
        "gs://bucket/p?X-Goog-Signature=hush",
        "s3://bucket/p?X-Amz-Signature=hush",
    ],
)
def test_an_address_with_a_signature_is_refused_and_not_shown(
    address: str, how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", address, *how]) == 2
    out, err = capsys.readouterr()
    assert "hush" not in out + err


@pytest.mark.parametrize("key", ["export.parquet", "export.delta", "restore.state", "archive"])
def test_config_shows_no_signed_address(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--set", f"{key}=az://acct/cont/p?sp=r&sig=hush"]) == 0
    out, err = capsys.readouterr()
    assert "hush" not in out + err
    assert f"sig={HIDDEN}" in out


@pytest.mark.parametrize("path", ["s3.secret_access_key", "s3.session_token", "source.sasl.password"])
def test_wrong_types_of_secrets(path: str) -> None:
    section, _, name = path.partition(".")
    Path("kbackup.toml").write_text(f'[{section}]\n"{name}" = [["hush"]]\n')
    with pytest.raises(UsageError) as raised:
        load((), ConfigFiles(), {})
    assert path in raised.value.message
    assert "hush" not in str(raised.value)
