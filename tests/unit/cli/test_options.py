"""Options set keys, command lines set what they were written for, and one name selects a restore point."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from kbackup.archive.query.selection import Selection, exact_entry
from kbackup.cli import COMMANDS, cli
from kbackup.cli.common import options
from kbackup.cli.common.command_context import CommandContext, FlagValues, pass_command_context
from kbackup.cli.common.command_lines import command_line, own_command
from kbackup.cli.restore import command as restore
from kbackup.config import KEYS, Config, Loaded, SettingOrigin
from kbackup.config.models import Restore
from kbackup.errors import UsageError
from tests.support.printed import parsed_command

RENAMED = {"--backup": "--restore-point", "--at": "--to-time"}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
"""Names of groups: any text that a document in JSON holds."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KBACKUP_METADATA_CACHE")  # what keeps other tests out of the home


def loaded(*args: str, target: bool = False) -> Loaded:
    config: list[Loaded] = []

    @click.command()
    @options.common_options
    @options.archive_option
    @(options.target_options if target else options.source_options)
    @options.store_options
    @options.spark_options
    @options.key_options(*(path for path in KEYS if path.startswith("restore." if target else "backup.")))
    @pass_command_context
    def command(context: CommandContext) -> None:
        config.append(context.loaded)

    result = CliRunner().invoke(command, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return config[0]


def test_nothing_given_sets_nothing() -> None:
    assert loaded().config == Config() == loaded(target=True).config


def test_flags_of_backup_become_settings() -> None:
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
    assert (config.stores["s3"].path_style, config.stores["s3"].region) == (True, "r")
    assert result.origins["source.bootstrap.servers"] == SettingOrigin("flag", "--bootstrap-server")
    assert result.origins["backup.topics"] == SettingOrigin("flag", "--topics")


def test_flags_of_restore_become_settings() -> None:
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


def test_flags_name_files_of_settings() -> None:
    Path("c.toml").write_text('archive = "here"')
    Path("client.properties").write_text("bootstrap.servers=h:1")
    result = loaded("--config", "c.toml", "--source-config", "client.properties")
    assert result.config.archive == "here"
    assert str(result.origins["source.bootstrap.servers"]) == "flag --source-config client.properties"


def test_an_archive_may_be_an_argument_and_is_asked_for() -> None:
    @options.archive_command("it", argument=True)
    def command(context: CommandContext) -> None:
        click.echo(context.archive)

    assert CliRunner().invoke(command, ["s3://b"]).output == "s3://b\n"
    with pytest.raises(UsageError, match="no archive is named"):
        CliRunner().invoke(command, [], catch_exceptions=False)


def test_help_comes_from_the_table_of_keys() -> None:
    @click.command()
    @options.key_options("backup.segment_bytes", "backup.compression", "restore.map", "restore.transactions")
    def command() -> None:
        """Do nothing."""

    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert f"--segment-bytes SIZE {KEYS['backup.segment_bytes'].doc} [default 128MiB]" in text
    for shown in ("--compression [none|zstd]", "--map NAME=VALUE", "--transactions / --no-transactions"):
        assert shown in text


def test_words_of_a_choice_may_be_given_at_once() -> None:
    for arguments in (("--settings", "acls,users"), ("--settings", "acls", "--settings", "users")):
        assert loaded(*arguments, target=True).config.restore.settings == ("acls", "users")
    with pytest.raises(UsageError, match="is not a list of acls, configs, quotas, users"):
        loaded("--settings", "acls,topics", target=True)


# One name selects a restore point and one a time, in every command; former names keep working.


def _commands(group: click.Group, context: click.Context, name: str = "") -> Iterator[tuple[str, click.Command]]:
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        assert command is not None
        path = f"{name} {part}".strip()
        yield path, command
        if isinstance(command, click.Group):
            yield from _commands(command, click.Context(command), path)


EVERY = dict(_commands(cli, click.Context(cli)))


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option)]


@pytest.mark.parametrize("name", EVERY)
def test_former_names_set_the_same_parameter_and_are_not_shown(name: str) -> None:
    command = EVERY[name]
    # A command keeps the option of its first context: without these names, other tests would find no -h.
    context = click.Context(command, info_name=name, **cli.context_settings)
    for former, present in RENAMED.items():
        assert all(former not in option.opts for option in _options(command))
        for option in _options(command):
            if present in option.opts:
                assert option.name is not None
                assert command.make_parser(context).parse_args([former, "1"])[0][option.name] == "1"
    words = command.get_help(context).replace(",", " ").split()
    completed = [item.value for item in command.shell_complete(context, "--")]
    assert not {*RENAMED} & {*words, *completed}


def test_commands_that_read_an_archive_have_the_options_of_a_selection() -> None:
    def having(option: str) -> set[str]:
        return {name for name, command in EVERY.items() if any(option in o.opts for o in _options(command))}

    read = {"info", "ls", "cat", "find", "groups show", "groups plan", "groups apply"}
    read |= {"schemas show", "schemas export", "schemas restore"}
    assert having("--to-time") == read | {"serve", "restore", "verify", "drill"}
    assert having("--restore-point") == having("--to-time") | {"copy", "migrate verify", "migrate bootstrap"}
    assert {*COMMANDS} <= {*EVERY}


# Written command lines set what they were written for, whatever names and values there are.


@given(NAMES, NAMES, NAMES)
@example("--json", "-x", "$${env:HOME}")
@example("${env:HOME}", "${file:/etc/passwd}", "=ls")
@example("/a/", "/(/", "//")
@example("", " ", "a=b")
@example("", "0", "=")
@example("'\"`$(reboot)\\", "!!", "\0\n\r\u202e")
def test_a_command_line_sets_any_names(selected: str, source: str, target: str) -> None:
    settings = {"restore.groups": [exact_entry(selected)], "restore.map_group": {source: target}}
    line = command_line(restore, settings, "--dry-run")
    assert line.isprintable()
    words = shlex.split(line)
    assert words[:3] == ["kbackup", "restore", "--dry-run"]
    config = parsed_command(words).restore
    assert config.map_group == {source: target}
    chosen = Selection.of(config.groups, ())
    assert chosen.matches(selected)
    assert not chosen.matches(selected + "x")
    assert chosen.matches(source) == (source == selected)


def test_a_command_line_sets_every_kind_of_value() -> None:
    settings: dict[str, object] = {
        "archive": "s3://my-backups/kafka",
        "restore.restore_point": 41,
        "restore.topics": ["orders", "/pay.*/"],
        "restore.map": {"orders": "again"},
        "restore.no_groups": True,
    }
    line = command_line(restore, settings)
    assert line == (
        "kbackup restore --archive s3://my-backups/kafka --restore-point 41 --topic orders --topic '/pay.*/' "
        "--map orders=again --no-groups"
    )
    config = parsed_command(shlex.split(line))
    assert config.archive == "s3://my-backups/kafka"
    expected = Restore(restore_point=41, topics=("orders", "/pay.*/"), map={"orders": "again"}, no_groups=True)
    assert config.restore == expected


def test_a_value_that_can_not_be_shown_is_refused() -> None:
    with pytest.raises(UsageError, match="--topic has a character that can't be shown"):
        command_line(restore, {"restore.topics": ["gro\u202eup"]})


@pytest.mark.parametrize("given_time", [["--to-time", "2h ago"], ["--to-time=2h ago"], ["--at", "2h ago"]])
def test_the_command_to_run_next_has_the_moment_of_the_plan(given_time: list[str]) -> None:
    """Two hours ago is another moment when somebody has read the plan."""
    arguments = ["restore", "a", *given_time, "--dry-run", "--topic", "orders"]
    with click.Context(cli, info_name="kbackup", obj=FlagValues(arguments=arguments)):
        line = own_command(drop=("--dry-run",), times={"--from-time": None, "--to-time": 1_700_000_000_000})
    assert line.endswith("restore a --to-time 2023-11-14T22:13:20.000Z --topic orders")
