"""Load configurations of a test's working directory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.config import Config, ConfigFiles, Loaded, Setting, SettingOrigin, load, settings_in_effect
from kbackup.config.clients import CONTROLLED
from kbackup.config.times import parse_time
from kbackup.config.windows import Range, parse_duration, parse_range, parse_rule, parse_size
from kbackup.errors import UsageError
from kbackup.store.s3 import S3Options

FLAG = SettingOrigin("flag", "--set")


def loaded(
    text: str = "",
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    files: ConfigFiles | None = None,
) -> Loaded:
    if text:
        Path("kbackup.toml").write_text(text, encoding="utf-8")
    settings = [Setting(path, value, FLAG) for path, value in (flags or {}).items()]
    return load(settings, files or ConfigFiles(), environ or {})


def refused(
    text: str = "", environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> UsageError:
    with pytest.raises(UsageError) as raised:
        loaded(text, environ, flags)
    assert raised.value.exit_code == 2
    return raised.value


# Layers, their precedence, and what is refused with which words.


def test_nothing_configured_gives_the_defaults() -> None:
    config = loaded().config
    assert config == Config()
    assert config.stores["s3"] == S3Options()
    assert config.backup.segment_bytes == 134_217_728
    assert (config.archive, config.source, config.spark.master) == (None, {}, "local[*]")


def test_each_layer_wins_over_the_one_before() -> None:
    file = '[backup]\nsegment_bytes = "1MiB"\n'
    environ = {"KBACKUP_BACKUP_SEGMENT_BYTES": "2MiB"}
    flags = {"backup.segment_bytes": "3MiB"}
    for layers, size, origin in (
        ((), 128, SettingOrigin("default")),
        ((file,), 1, SettingOrigin("file", "kbackup.toml")),
        ((file, environ), 2, SettingOrigin("environment", "KBACKUP_BACKUP_SEGMENT_BYTES")),
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
    assert below == {"bootstrap.servers": "by-variable:1", "client.id": "by-variable", "client.rack": "variable"}
    above = loaded("", environ, flags, ConfigFiles(source="by-flag")).config.source
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
    assert result.origins["restore.map.my.topic"] == SettingOrigin("file", "kbackup.toml")


def test_second_names_of_librdkafka_are_one_key() -> None:
    flags = {"target.bootstrap.servers": "flag:1"}
    target = loaded('[target]\n"metadata.broker.list" = "f:1"\n"sasl.mechanisms" = "PLAIN"', flags=flags).config.target
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
    assert getattr(loaded("", variable).config.section(section), field) == value
    assert getattr(loaded("", flags={path: written}).config.section(section), field) == value


@pytest.mark.parametrize(("text", "environ"), [("[restore]\nbackup = 7", {}), ("", {"KBACKUP_RESTORE_BACKUP": "7"})])
def test_the_former_path_of_a_key_works(text: str, environ: dict[str, str]) -> None:
    found = loaded(text, environ)
    assert found.config.restore.restore_point == 7
    assert found.origins["restore.restore_point"].kind == ("environment" if environ else "file")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[backup]\nsegment_byte = 1", "file kbackup.toml: unknown key backup.segment_byte", "backup.segment_bytes"),
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
        ("[restore]\nrestore_point = '-1'", "restore.restore_point '-1' is not a number, a label or latest", ""),
        ("[restore]\nrestore_id = 7", "restore.restore_id 7 is not text", ""),
        ("[restore]\nmap_regex = ['a']", "restore.map_regex 'a' is no pattern=replacement: it has no '='", "'^=res"),
        ("[restore]\nmap_regex = ['^=']", "there is no new name after its last '='", "puts 'restored.' before each"),
        ("[restore]\nreplication_factor = 40000", "40000 is not a number, 1 to 32767", ""),
        ("[restore]\nto_time = '2026-13-45'", "to_time '2026-13-45' is not a time: there is no month 13", ""),
        ("[restore]\nfrom_time = 1700000000", "restore.from_time '1700000000' is not a time", ""),
        ("[restore]\nrange = ['orders:0:9-5']", "is not a list of topic:partition:from-to", ""),
        ("[source]\na = 1979-05-27", "source.a is not text", "quotes"),
        ("[source]\n'a.b' = 1\n[source.a]\nb = 2", "source.a.b is set twice", "remove one"),
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
    for environ, files in (({}, ConfigFiles(config="gone")), ({"KBACKUP_CONFIG": "gone"}, ConfigFiles())):
        with pytest.raises(UsageError, match="gone: no such file"):
            loaded("", environ, files=files)
    with pytest.raises(UsageError, match="gone: no such file"):
        loaded("", files=ConfigFiles(target="gone"))


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


# Configurations that are refused: properties of Kafka clients, and files that others can write.


@pytest.mark.parametrize(
    ("text", "expected", "hint"),
    [
        ('bootstrap.server = "b:1"', "librdkafka has no property bootstrap.server", "mean bootstrap.servers?"),
        ('sasl.user = "me"', "librdkafka has no property sasl.user", "mean sasl.username?"),
        ('retry.tempo = "1"', "librdkafka has no property retry.tempo", "by --source-config"),
        ('security.protocol = "TLS"', 'Invalid value "TLS"', "CONFIGURATION.md"),
        ('socket.timeout.ms = "1"', "value 1 is outside allowed range 10..300000", "CONFIGURATION.md"),
        ('ssl.truststore.location = "x"', "Java TrustStores are not supported", "by --source-config"),
    ],
)
def test_client_properties_that_librdkafka_refuses(text: str, expected: str, hint: str) -> None:
    error = refused(f"[source]\n{text}")
    name = text.partition(" = ")[0]
    assert f"kbackup.toml: source.{name}: " in error.message
    assert expected in error.message
    assert hint in (error.hint or "")


def test_refused_values_of_references_are_not_shown() -> None:
    error = refused('[target]\nsecurity.protocol = "${env:PASSWORD}"', {"PASSWORD": "hush"})
    assert error.message.endswith("target.security.protocol: librdkafka refuses its value")
    assert "hush" not in str(error)


def test_a_java_file_with_a_property_of_nobody(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=b:1\nbootstrap.server=b:1\n")
    with pytest.raises(UsageError) as raised:
        load([], ConfigFiles(source=str(file)), {})
    assert f"flag --source-config {file}: source.bootstrap.server: " in raised.value.message


def test_properties_that_kbackup_reads_itself() -> None:
    text = '[source]\nkbackup.oauth.callback = "module:function"\nplugin.library.paths = "/not-there.so"'
    assert set(loaded(text).config.source) == {"kbackup.oauth.callback", "plugin.library.paths"}


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_a_file_in_the_working_directory_that_others_can_write_is_refused(mode: int) -> None:
    Path("kbackup.toml").write_text('[encryption]\nkey = "command:id"\n', encoding="utf-8")
    Path("kbackup.toml").chmod(mode)
    error = refused()
    assert error.message == "./kbackup.toml can be written by other users"
    assert "--config kbackup.toml" in error.hint
    assert loaded(files=ConfigFiles(config="kbackup.toml")).config.encryption.key == "command:id"
    assert loaded(environ={"KBACKUP_CONFIG": "kbackup.toml"}).config.encryption.key == "command:id"


@pytest.mark.parametrize("link", [False, True])
def test_a_file_in_the_working_directory_of_another_user_is_refused(
    link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link of another user to a file of ours is refused too."""
    ours = os.geteuid()
    Path("ours.toml").write_text("", encoding="utf-8")
    Path("kbackup.toml").symlink_to("ours.toml") if link else Path("kbackup.toml").touch(0o644)
    stranger = os.lstat("kbackup.toml").st_ino

    def of_stranger(status: os.stat_result) -> os.stat_result:
        owner = ours + 1 if status.st_ino == stranger else ours
        return os.stat_result((*status[:4], owner, *status[5:]))

    fstat, lstat = os.fstat, os.lstat
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda number: of_stranger(fstat(number)))
        patched.setattr(os, "lstat", lambda path: of_stranger(lstat(path)))
        error = refused()
    assert error.message == f"./kbackup.toml belongs to user {ours + 1}"
    assert "--config kbackup.toml" in error.hint
    assert loaded().config == Config()


def test_a_file_that_root_or_the_own_group_can_write_is_read() -> None:
    Path("kbackup.toml").write_text('archive = "/backup"\n', encoding="utf-8")
    os.chown("kbackup.toml", -1, os.getegid())
    Path("kbackup.toml").chmod(0o664)
    assert loaded().config.archive == "/backup"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("0", 0), ("1_024", 1024), ("8MiB", 8 << 20), ("8 mib", 8 << 20), ("1.5GiB", 3 << 29)),
        *(("2kB", 2000), ("3TB", 3 * 10**12), ("7B", 7)),
    ],
)
def test_a_size_has_a_decimal_or_a_binary_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "8M", "-1", "1.5", "8MiBs", "1e3", "٣", "1__0"])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("250ms", 0.25), ("1.5m", 90), ("2h", 7200), ("1d", 86400)])
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_rules_end_at_the_last_equals_sign() -> None:
    pattern, replacement = parse_rule(r"^[^=]=(.*)$=copy.\1")
    assert (pattern.pattern, replacement) == (r"^[^=]=(.*)$", r"copy.\1")
    with pytest.raises(ValueError):
        parse_rule("no-rule")


# Ranges of offsets as people write them.


@given(st.from_regex(r"[a-z]{1,3}:[0-9]{1,12}:[0-9]{0,21}-[0-9]{0,21}") | st.text())
def test_any_text_is_a_range_or_none(text: str) -> None:
    try:
        found = parse_range(text)
    except ValueError:
        return
    assert 0 <= (found.start or 0) < (2**63 if found.end is None else found.end) <= 2**63


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders:0:5-10", Range("orders", 0, 5, 10)),
        ("a.b_c-1:12:-10", Range("a.b_c-1", 12, None, 10)),
        ("orders:0:5-", Range("orders", 0, 5, None)),
        (" orders:0:- ", Range("orders", 0, None, None)),
        ("orders:0:0-9223372036854775807", Range("orders", 0, 0, 2**63 - 1)),
    ],
)
def test_a_range_of_offsets_may_be_open_at_either_end(text: str, expected: Range) -> None:
    assert parse_range(text) == expected
    assert parse_range(text.replace(":", "/")) == expected
    assert str(expected) == text.strip()


def test_a_single_offset_is_a_range_of_one() -> None:
    assert parse_range("orders:2:1376") == Range("orders", 2, 1376, 1377)


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders", "orders:0", "orders:0:a-b", "orders:-1:0-5", "or ders:0:0-5", ":0:0-5"),
        *("orders:0:5-5", "orders:0:9-5", "orders:0:-0", "orders:0:0-9223372036854775808"),
        *("orders:0:9223372036854775808-", "orders:0:٣-٤", "orders:x:0-5"),
    ],
)
def test_a_text_that_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_range(text)


def test_a_file_may_have_times_as_toml_has_them() -> None:
    restore = loaded("[restore]\nfrom_time = 1700000000000\nto_time = 2023-11-14T23:13:20Z").config.restore
    assert restore.from_time == "1700000000000"
    assert parse_time(restore.to_time or "", now=0) == 1_700_003_600_000


def test_a_time_of_a_file_gets_the_zone_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        restore = loaded("[restore]\nfrom_time = 2023-11-14T22:13:20\nto_time = '2023-11-15 7:13'").config.restore
        assert restore.from_time == "2023-11-14T22:13:20+09:00"
        assert restore.to_time == "2023-11-15T07:13:00+09:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_time_of_a_file_that_is_later_today_concerns_nobody_but_who_uses_it() -> None:
    """A backup does not read it, and must not fail in the morning."""
    midnight_is_over = "23:59:59.999999"
    assert loaded(f"[restore]\nto_time = '{midnight_is_over}'").config.restore.to_time == midnight_is_over


def test_a_wrong_time_of_a_file_is_named_with_the_part_that_is_wrong() -> None:
    error = refused("[restore]\nto_time = '2026-13-45'")
    assert error.message.endswith("restore.to_time '2026-13-45' is not a time: there is no month 13 and no day 45")
