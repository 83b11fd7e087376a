"""Configurations that are refused: properties of Kafka clients, and files that others can write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbackup.config import Config, Files, load
from kbackup.errors import UsageError
from tests.unit.config.loading import loaded, refused


@pytest.mark.parametrize(
    ("text", "expected", "hint"),
    [
        (
            'bootstrap.server = "b:1"',
            "librdkafka has no property bootstrap.server",
            "mean bootstrap.servers?",
        ),
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
        load([], Files(source=str(file)), {})
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
    assert loaded(files=Files(config="kbackup.toml")).config.encryption.key == "command:id"
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
