"""Shared options set keys, and nothing else."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import (
    archive_argument,
    archive_option,
    common_options,
    key_options,
    s3_options,
    source_options,
    spark_options,
    target_options,
)
from kbackup.config import KEYS, Config, Loaded, SettingOrigin
from kbackup.errors import UsageError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KBACKUP_METADATA_CACHE")  # what keeps other tests out of the home


def loaded(*args: str, target: bool = False) -> Loaded:
    config: list[Loaded] = []

    @click.command()
    @common_options
    @archive_option
    @(target_options if target else source_options)
    @s3_options
    @spark_options
    @key_options(*(path for path in KEYS if path.startswith("restore." if target else "backup.")))
    @pass_frame
    def command(frame: Frame) -> None:
        config.append(frame.loaded)

    result = CliRunner().invoke(command, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return config[0]


def test_nothing_given_sets_nothing() -> None:
    assert loaded().config == Config() == loaded(target=True).config


def test_backup_flags() -> None:
    result = loaded(
        *("-a", "s3://b/p", "--bootstrap-server", "h:1", "--master", "local[1]", "--topics", "a", "--topics", "/b,c/"),
        *("--segment-bytes", "1MiB", "--allow-loss", "--s3-path-style", "--s3-region", "r"),
        *("--set", "source.client.id=x=y", "--set", "backup.groups=g,h"),
    )
    config = result.config
    assert (config.archive, config.spark.master) == ("s3://b/p", "local[1]")
    assert config.source == {"bootstrap.servers": "h:1", "client.id": "x=y"}
    assert (config.backup.topics, config.backup.groups) == (("a", "/b,c/"), ("g", "h"))
    assert (config.backup.segment_bytes, config.backup.allow_loss) == (1 << 20, True)
    assert (config.s3.path_style, config.s3.region) == (True, "r")
    assert result.origins["source.bootstrap.servers"] == SettingOrigin("flag", "--bootstrap-server")
    assert result.origins["backup.topics"] == SettingOrigin("flag", "--topics")


def test_restore_flags() -> None:
    config = loaded(
        *("--map", "a.b=c", "--map", "d=e", "--map-regex", r"^(.{1,3})$=x.\1", "--no-groups", "--no-transactions"),
        *("--replication-factor", "2", "--bootstrap-server", "h:1", "--restore-point", "7"),
        target=True,
    ).config
    assert config.restore.map == {"a.b": "c", "d": "e"}
    assert config.restore.map_regex == (r"^(.{1,3})$=x.\1",)
    assert (config.restore.no_groups, config.restore.transactions) == (True, False)
    assert (config.restore.replication_factor, config.restore.restore_point) == (2, 7)
    assert config.target == {"bootstrap.servers": "h:1"}


def test_files_of_flags() -> None:
    Path("c.toml").write_text('archive = "here"')
    Path("client.properties").write_text("bootstrap.servers=h:1")
    result = loaded("--config", "c.toml", "--source-config", "client.properties")
    assert result.config.archive == "here"
    assert str(result.origins["source.bootstrap.servers"]) == "flag --source-config client.properties"


def test_an_archive_may_be_an_argument_and_is_asked_for() -> None:
    @click.command()
    @archive_argument
    @pass_frame
    def command(frame: Frame) -> None:
        click.echo(frame.archive)

    assert CliRunner().invoke(command, ["s3://b"]).output == "s3://b\n"
    with pytest.raises(UsageError, match="no archive is named"):
        CliRunner().invoke(command, [], catch_exceptions=False)


def test_help_comes_from_the_table_of_keys() -> None:
    @click.command()
    @key_options("backup.segment_bytes", "backup.compression", "restore.map", "restore.transactions")
    def command() -> None:
        """Do nothing."""

    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert f"--segment-bytes SIZE {KEYS['backup.segment_bytes'].doc} [default 128MiB]" in text
    assert "--compression [none|zstd]" in text
    assert "--map NAME=VALUE" in text
    assert "--transactions / --no-transactions" in text


@pytest.mark.parametrize("arguments", [("--settings", "acls,users"), ("--settings", "acls", "--settings", "users")])
def test_words_of_a_choice_may_be_given_at_once(arguments: tuple[str, ...]) -> None:
    assert loaded(*arguments, target=True).config.restore.settings == ("acls", "users")


def test_words_that_are_no_choice() -> None:
    with pytest.raises(UsageError, match="is not a list of acls, configs, quotas, users"):
        loaded("--settings", "acls,topics", target=True)
