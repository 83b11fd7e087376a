"""Layers, their precedence, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.config import Config, Files, Origin, settings_in_effect
from kbackup.config.clients import CONTROLLED
from kbackup.errors import UsageError
from kbackup.store.options import S3Options
from tests.unit.config.loading import FLAG, loaded, refused


def test_defaults() -> None:
    config = loaded().config
    assert config == Config()
    assert config.s3 == S3Options()
    assert config.backup.segment_bytes == 134_217_728
    assert (config.archive, config.source, config.spark.master) == (None, {}, "local[*]")


def test_each_layer_wins_over_the_one_before() -> None:
    file = '[backup]\nsegment_bytes = "1MiB"\n'
    environ = {"KBACKUP_BACKUP_SEGMENT_BYTES": "2MiB"}
    flags = {"backup.segment_bytes": "3MiB"}
    for layers, size, origin in (
        ((), 128, Origin("default")),
        ((file,), 1, Origin("file", "kbackup.toml")),
        ((file, environ), 2, Origin("environment", "KBACKUP_BACKUP_SEGMENT_BYTES")),
        ((file, environ, flags), 3, FLAG),
    ):
        result = loaded(*layers)
        assert result.config.backup.segment_bytes == size << 20
        assert result.origins["backup.segment_bytes"] == origin


def test_client_properties_stand_above_what_named_them() -> None:
    for name in ("by-variable", "by-flag"):
        Path(name).write_text(f"bootstrap.servers={name}:1\nclient.id={name}\nclient.rack={name}\n")
    environ = {"KBACKUP_SOURCE_CONFIG": "by-variable", "KBACKUP_SOURCE_CLIENT_RACK": "variable"}
    flags = {"source.client.id": "flag"}
    below = loaded('[source]\n"bootstrap.servers" = "file:1"', environ).config.source
    assert below == {
        "bootstrap.servers": "by-variable:1",
        "client.id": "by-variable",
        "client.rack": "variable",
    }
    above = loaded("", environ, flags, Files(source="by-flag")).config.source
    assert above == {"bootstrap.servers": "by-flag:1", "client.id": "flag", "client.rack": "by-flag"}


def test_tables_flatten_and_merge_name_by_name() -> None:
    result = loaded(
        '[source]\n"bootstrap.servers" = ["a:1", "b:2"]\nsocket.keepalive.enable = true\n'
        '[source.ssl]\nca.location = "ca.pem"\n[restore.map]\n"my.topic" = "x"\nplain = "y"\n',
        {"KBACKUP_SOURCE_SSL_KEY_PASSWORD": "k", "KBACKUP_RESTORE_MAP": "plain=z, more=m"},
        {"spark.conf.spark.executor.memory": "2g", "spark.conf.spark.cores.max": 4},
    )
    assert result.config.source == {
        "bootstrap.servers": "a:1,b:2",
        "socket.keepalive.enable": "true",
        "ssl.ca.location": "ca.pem",
        "ssl.key.password": "k",
    }
    assert result.config.restore.map == {"my.topic": "x", "plain": "z", "more": "m"}
    assert result.config.spark.conf == {"spark.executor.memory": "2g", "spark.cores.max": "4"}
    assert result.origins["restore.map.my.topic"] == Origin("file", "kbackup.toml")


def test_second_names_of_librdkafka_are_one_key() -> None:
    flags = {"target.bootstrap.servers": "flag:1"}
    target = loaded(
        '[target]\n"metadata.broker.list" = "f:1"\n"sasl.mechanisms" = "PLAIN"', flags=flags
    ).config.target
    assert target == {"bootstrap.servers": "flag:1", "sasl.mechanism": "PLAIN"}


@pytest.mark.parametrize(
    ("path", "written", "value"),
    [
        ("backup.topics", "a, b,/c{1,2}/", ("a", "b", "/c{1,2}/")),
        ("backup.topics", "['/x,y/', 'z']", ("/x,y/", "z")),
        ("backup.split_records", "1_000", 1000),
        ("backup.lease_seconds", "2m", 120),
        ("backup.allow_loss", "yes", True),
        ("restore.transactions", "off", False),
        ("restore.restore_point", "000000012", 12),
        ("restore.restore_point", "latest", "latest"),
        ("restore.restore_point", "before-migration", "before-migration"),
        ("restore.replication_factor", "3", 3),
        ("s3.connect_timeout", "500ms", 0.5),
        ("s3.part_size", "16MiB", 16 << 20),
        ("s3.path_style", "true", True),
        ("s3.sse", "aws:kms", "aws:kms"),
    ],
)
def test_text_is_read_as_the_key_wants(path: str, written: str, value: object) -> None:
    variable = {"KBACKUP_" + path.upper().replace(".", "_"): written}
    section, _, field = path.partition(".")
    assert getattr(getattr(loaded("", variable).config, section), field) == value
    assert getattr(getattr(loaded("", flags={path: written}).config, section), field) == value


@pytest.mark.parametrize(
    ("text", "environ"),
    [("[restore]\nbackup = 7", {}), ("", {"KBACKUP_RESTORE_BACKUP": "7"})],
)
def test_the_former_path_of_a_key_works(text: str, environ: dict[str, str]) -> None:
    found = loaded(text, environ)
    assert found.config.restore.restore_point == 7
    assert found.origins["restore.restore_point"].kind == ("environment" if environ else "file")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "[backup]\nsegment_byte = 1",
            "file kbackup.toml: unknown key backup.segment_byte",
            "backup.segment_bytes",
        ),
        ("topics = ['a']", "file kbackup.toml: unknown key topics", "backup.topics"),
        ("[sorce]\nbootstrap.servers = 'a'", "unknown key sorce.bootstrap.servers", "did you mean source?"),
        ("[s3]\nendpoint = 'x'", "unknown key s3.endpoint", "s3.endpoint_url"),
        ("[restore.mapp]\na = 'b'", "unknown key restore.mapp.a", "restore.map"),
        ("backup = 5", "backup is a section", "backup.topics"),
        ("source = 5", "source is not a table", "a=b"),
        (
            "[backup]\ncompression = 'gzip'",
            "backup.compression 'gzip' is not none or zstd",
            "Compression of new segments",
        ),
        ("[backup]\nsegment_bytes = '8 parsecs'", "'8 parsecs' is not a size such as 8MiB", ""),
        ("[backup]\nsegment_bytes = 0", "0 is not a size such as 8MiB, at least 1", ""),
        ("[backup]\ntopics = [1]", "backup.topics [1] is not a list of text", ""),
        ("[backup]\ntopics = ['/a[/']", "backup.topics: 'a[' is no regular expression", ""),
        ("[backup]\nallow_loss = 1", "backup.allow_loss 1 is not true or false", ""),
        (
            "[restore]\nrestore_point = '-1'",
            "restore.restore_point '-1' is not a number, a label or latest",
            "",
        ),
        ("[restore]\nrestore_id = 7", "restore.restore_id 7 is not text", ""),
        ("[restore]\nmap_regex = ['a']", "restore.map_regex ['a'] is not", "pattern=replacement"),
        ("[restore]\nreplication_factor = 40000", "40000 is not a number, 1 to 32767", ""),
        ("[source]\na = 1979-05-27", "source.a is not text", "quotes"),
        ("[source]\n'a.b' = 1\n[source.a]\nb = 2", "source.a.b stands there twice", "remove one"),
        ("a = ", "file kbackup.toml: not TOML", ""),
    ],
)
def test_refusals_name_file_key_and_remedy(text: str, message: str, hint: str) -> None:
    error = refused(text)
    assert message.removeprefix("file ") in error.message
    assert error.message.removeprefix("file ").startswith("kbackup.toml: ")
    assert hint in error.hint


def test_unknown_variables_are_refused() -> None:
    assert "did you mean backup.segment_bytes?" in refused("", {"KBACKUP_BACKUP_SEGMENT_BYTE": "1"}).hint
    assert "did you mean backup.segment_bytes?" in refused("", {"KBACKUP_SEGMENT_BYTES": "1"}).hint
    assert "did you mean source?" in refused("", {"KBACKUP_SORCE_SSL_CA_LOCATION": "1"}).hint
    assert "unknown key foo" in refused("", {"KBACKUP_FOO": "1"}).message


def test_variables_of_kubernetes_services_and_empty_ones_are_passed_over() -> None:
    links = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR")
    environ = {f"KBACKUP_{name}": "1" for name in links} | {f"KBACKUP_S3_{name}": "1" for name in links}
    assert loaded("", environ | {"KBACKUP_ARCHIVE": "", "OTHER": "x"}).config == Config()


@pytest.mark.parametrize("section", ["source", "target"])
@pytest.mark.parametrize("name", CONTROLLED)
def test_controlled_properties_are_refused(section: str, name: str) -> None:
    variable = f"KBACKUP_{section}_{name}".upper().replace(".", "_")
    for error in (
        refused(f'[{section}]\n"{name}" = "x"'),
        refused("", {variable: "x"}),
        refused("", flags={f"{section}.{name}": "x"}),
    ):
        assert f"{section}.{name} is kbackup's own to set" in error.message
        assert error.hint == CONTROLLED[name]


def test_references_are_replaced_everywhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from file\n")
    config = loaded(
        f'archive = "s3://${{env:BUCKET}}/a"\n[source]\n"sasl.password" = "${{file:{secret}}}"\n'
        '"client.rack" = "$${env:BUCKET} ${spark.home}"\n'
        '[backup]\ntopics = ["${env:TOPIC}"]\nsegment_bytes = "${env:SIZE}"',
        {"BUCKET": "b", "TOPIC": "t", "SIZE": "1MiB", "KBACKUP_TARGET_SASL_PASSWORD": "${env:BUCKET}"},
    ).config
    assert config.archive == "s3://b/a"
    assert config.source == {"sasl.password": "from file", "client.rack": "${env:BUCKET} ${spark.home}"}
    assert (config.backup.topics, config.backup.segment_bytes) == (("t",), 1 << 20)
    assert config.target == {"sasl.password": "b"}


@pytest.mark.parametrize("reference", ["${env:NOT_SET}", "${file:not-there}"])
def test_missing_references_name_the_key_and_not_the_value(reference: str) -> None:
    error = refused(f'[source]\n"sasl.password" = "hush-{reference}"')
    assert "kbackup.toml: source.sasl.password: " in error.message
    assert "hush" not in str(error)


def test_files_that_are_not_there() -> None:
    for environ, files in (({}, Files(config="gone")), ({"KBACKUP_CONFIG": "gone"}, Files())):
        with pytest.raises(UsageError, match="gone: no such file"):
            loaded("", environ, files=files)
    with pytest.raises(UsageError, match="gone: no such file"):
        loaded("", files=Files(target="gone"))


def test_settings_in_effect_have_every_key_and_entry() -> None:
    result = loaded('[source]\n"client.rack" = "2"\n"client.id" = "1"')
    settings = settings_in_effect(result)
    assert [setting.path for setting in settings[:4]] == [
        "archive",
        "archive_id",
        "source.client.id",
        "source.client.rack",
    ]
    assert {setting.path for setting in settings} == set(result.origins)
