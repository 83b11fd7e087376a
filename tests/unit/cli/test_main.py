"""The command line: exit codes, what is printed where, signals, completion, help, and what is not imported."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, Protocol

import click
import pytest
from click.shell_completion import ShellComplete

from kbackup import cli, errors
from kbackup.cli.common import completion
from kbackup.cli.common.command_context import EXIT_CODES, CommandContext, pass_command_context
from kbackup.cli.common.options import common_options
from kbackup.config import KEYS, VARIABLES
from kbackup.errors import EXIT_LOSS, CorruptError, KbackupError, LockedError
from scripts.docs.commands import all_commands
from tests.support.printed import Kbackup, Printed, loaded_modules

ROOT = Path(__file__).parents[3]
HEAVY = {"pyspark", "boto3", "botocore", "confluent_kafka", "pyarrow", "numpy"}
Body = Callable[[CommandContext], int | None]


class Run(Protocol):
    def __call__(self, body: Body, *args: str, code: int) -> Printed: ...


def tree(root: type[KbackupError] = KbackupError) -> list[type[KbackupError]]:
    """The classes of `kbackup.errors`; what other modules derive from them they keep to themselves."""
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(found for child in children for found in tree(child))]


@pytest.fixture
def run(kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a function as the body of a command `it`; arguments go behind its name."""
    monkeypatch.chdir(tmp_path)

    def runner(body: Body, *args: str, code: int) -> Printed:
        command = click.command("it")(common_options(pass_command_context(body)))
        monkeypatch.setitem(cli.COMMANDS, "it", ("it", "It."))
        monkeypatch.setitem(cli.cli.subcommands, "it", "kbackup.cli.it")
        monkeypatch.setitem(sys.modules, "kbackup.cli.it", SimpleNamespace(command=command))
        return kbackup("it", *args, code=code)

    return runner


def failing(error: BaseException) -> Callable[[CommandContext], NoReturn]:
    def body(context: CommandContext) -> NoReturn:
        raise error

    return body


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_every_error_ends_in_the_code_of_its_class(kind: type[KbackupError], run: Run) -> None:
    printed = run(failing(kind("segment x: broken", "do this")), code=kind.exit_code)
    assert printed == ("", "kbackup: segment x: broken\nhint: do this\n")


def test_exit_codes_are_those_of_the_classes(run: Run) -> None:
    assert set(EXIT_CODES) == {kind.exit_code for kind in tree()} | {errors.EXIT_OK, EXIT_LOSS}
    run(lambda context: None, code=0)
    run(lambda context: EXIT_LOSS, code=3)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, int] = {}
    parents = [1]
    for line in (errors.__doc__ or "").splitlines():
        words = line.replace("│", " ").replace("├── ", "    ").replace("└── ", "    ").split()
        if not words or not words[0].endswith("Error"):
            continue
        depth = (len(line) - len(line.lstrip(" │├└─"))) // 4
        code = int(words[1]) if len(words) > 1 and words[1].isdigit() else parents[depth - 1]
        parents[depth:] = [code]
        drawn[words[0]] = code
    assert drawn == {kind.__name__: kind.exit_code for kind in tree()}


def test_json_holds_the_error_where_nothing_was_printed(run: Run) -> None:
    printed = run(failing(LockedError("archive a is locked", "wait")), "--json", code=11)
    error = {"type": "LockedError", "message": "archive a is locked", "hint": "wait", "exit_code": 11}
    assert printed.json == {"error": error, "exit_code": 11}
    assert printed.err == "kbackup: archive a is locked\nhint: wait\n"


def test_json_is_one_document_also_when_it_fails_later(run: Run) -> None:
    def body(context: CommandContext) -> int:
        context.reporter.document({"bad": 1})
        raise CorruptError("1 segment is bad")

    error = {"type": "CorruptError", "message": "1 segment is bad", "hint": "", "exit_code": 13}
    assert run(body, "--json", code=13).json == {"bad": 1, "error": error, "exit_code": 13}


def test_json_holds_the_exit_code_of_metrics_that_were_not_written(run: Run, tmp_path: Path) -> None:
    def body(context: CommandContext) -> None:
        context.reporter.document({"good": 1})
        tmp_path.rename(tmp_path.with_name("gone"))

    printed = run(body, "--json", "--metrics-file", str(tmp_path / "kbackup.prom"), code=1)
    assert printed.json == {"good": 1, "exit_code": 1}


@pytest.mark.parametrize(("args", "code"), [(["config"], 0), (["config", "--jsn"], 2), (["list", "-a", "s3://"], 2)])
def test_json_for_logs_is_one_line_with_the_exit_code(args: list[str], code: int, kbackup: Kbackup) -> None:
    (document,) = kbackup(*args, "--json=line", code=code).records
    assert document["exit_code"] == code
    assert ("error" in document) is (code != 0)


def test_errors_of_executors_are_known_by_their_marker(run: Run) -> None:
    lost = errors.UnreachableError("source at h:1 did not answer", "is it up?")
    printed = run(failing(RuntimeError(f"Job aborted: {lost.marker()}\n\tat java")), code=14)
    assert printed.err == "kbackup: source at h:1 did not answer\nhint: is it up?\n"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by nought\nand more"), EOFError("by nought"), BrokenPipeError("by nought")]
)
def test_internal_errors_show_their_last_line(error: Exception, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_is_stdout_closed", lambda: False)
    err = run(failing(error), code=1).err
    assert err.startswith(f"kbackup: internal error: {type(error).__name__}: by nought\nhint: run again with --debug")
    assert "Traceback" not in err
    assert "Traceback" in run(failing(error), "--debug", code=1).err
    monkeypatch.setenv("KBACKUP_DEBUG", "1")
    assert "Traceback" in run(failing(error), code=1).err


def test_an_interrupted_command_ends_with_130_and_says_so(run: Run) -> None:
    follows = RuntimeError("job cancelled"), KbackupError("a task failed")
    for error in follows:
        error.__context__ = KeyboardInterrupt()
    for raised in (KeyboardInterrupt(), *follows):
        assert run(failing(raised), code=130).err == "kbackup: interrupted\n"


def test_messages_cannot_steer_the_terminal(run: Run) -> None:
    err = run(failing(KbackupError("group \x1b[2J\u202e\nline two")), code=1).err
    assert err == "kbackup: group \\x1b[2J\\u202e\n  line two\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["confg"], "kbackup: no such command: confg; did you mean config?\nhint: try 'kbackup --help'\n"),
        (["config", "--jsn"], "--json"),
        (["config", "--set", "nothing"], "name=value"),
        (["config", "extra"], "hint: try 'kbackup config --help'"),
        ([], "Usage: kbackup"),
        (["completion", "tcsh"], "tcsh"),
        (["help", "restor"], "no such command: restor; did you mean restore?"),
        (["help", "groups", "plans"], "plans"),
        (["help", "backup", "now"], "kbackup backup has no command now\nhint: run 'kbackup help backup'"),
    ],
)
def test_usage_errors(args: list[str], message: str, kbackup: Kbackup) -> None:
    assert message in kbackup(*args, code=2).err


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ([], "Usage: kbackup [OPTIONS] COMMAND"),
        (["backup"], "Usage: kbackup backup [OPTIONS]"),
        (["groups", "plan"], "Usage: kbackup groups plan [OPTIONS]"),
    ],
)
def test_help_shows_what_the_option_shows(words: list[str], usage: str, kbackup: Kbackup) -> None:
    shown = kbackup("help", *words).out
    assert shown.startswith(usage)
    assert kbackup(*words, "--help").out == kbackup(*words, "-h").out == shown


def test_help_names_commands_and_codes(kbackup: Kbackup) -> None:
    out = kbackup("--help").out
    for text in [*cli.COMMANDS, *map(str, EXIT_CODES)]:
        assert f"\n  {text} " in out
    assert kbackup("--version").out.startswith("kbackup ")


def test_help_sorts_every_command_by_task(kbackup: Kbackup) -> None:
    grouped = [name for names in cli.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(cli.COMMANDS)
    out = kbackup("--help").out
    assert [title for title in cli.GROUPS if f"\n{title}:\n" in out] == [*cli.GROUPS]


@pytest.mark.parametrize("name", all_commands())
def test_help_ends_with_an_example_and_begins_with_own_options(name: str, kbackup: Kbackup) -> None:
    command = all_commands()[name]
    out = kbackup(*name.split(), "--help").out
    assert out.splitlines()[-1].startswith(f"  Example: kbackup {name}"), out
    options = [option.name for option in command.params if isinstance(option, click.Option)]
    common = [option.name for option in cli.cli.params if option.name != "version" and option.name in options]
    assert options[len(options) - len(common) :] == common


# Processes of kbackup: signals, interrupts, closed pipes, and their imports.


def python(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False, env=env
    )


def test_sigterm_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cli.main(["--version"])
    assert signal.getsignal(signal.SIGTERM) is before


_SLEEP = """
import sys, time, types, click
from kbackup import cli
@click.command()
def command():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
cli.COMMANDS["it"], cli.cli.subcommands["it"] = ("it", ""), "kbackup.cli.it"
sys.modules["kbackup.cli.it"] = types.SimpleNamespace(command=command)
sys.exit(cli.main(["it"]))
"""


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_run_with_its_cleaning_up(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _SLEEP], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "cleaned up\n", "kbackup: interrupted\n")


def test_a_reader_that_leaves_is_no_internal_error() -> None:
    command = [sys.executable, "-m", "kbackup", "config", "--keys"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
    assert (process.returncode, said) == (1, "")


@pytest.mark.parametrize("args", [["--help"], ["config", "--show"], ["config", "--json"]])
@pytest.mark.exhaustive(keep=1)
def test_nothing_heavy_is_imported(args: list[str], tmp_path: Path) -> None:
    assert not HEAVY & loaded_modules(*args, cwd=tmp_path, env={})


_INTERRUPTED = """
import os, runpy, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))

sys.meta_path.insert(0, Interrupting())
runpy.run_module("kbackup", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["click", "kbackup.cli.common.output"])
def test_an_interrupt_while_modules_load_ends_in_its_code(number: int, module: str) -> None:
    done = python("-c", _INTERRUPTED, module, str(int(number)))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kbackup: interrupted\n")


_NATIVE = """
import atexit, sys
from kbackup import cli
import kbackup.__main__

class Late:
    def __del__(self):
        print("modules are taken down")

def run():
    kbackup.late = Late()
    atexit.register(print, "cleaned up")
    return 7

cli.main = run
sys.exit(kbackup.__main__.main())
"""


def test_a_process_ends_before_its_modules_are_taken_down() -> None:
    """With the exit code, after what is registered for the exit: threads of native libraries may call Python."""
    done = python("-c", _NATIVE)
    assert (done.returncode, done.stdout, done.stderr) == (7, "cleaned up\n", "")


def test_the_installed_command_is_the_module_s() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"kbackup": "kbackup.__main__:main"}


_SCRIPT = """
source <(kbackup completion bash)
declare -a COMPREPLY
for line in "$@"; do
    read -ra COMP_WORDS <<<"$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    function=$(complete -p kbackup | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    $function kbackup
    echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_choices(tmp_path: Path) -> None:
    (tmp_path / "kbackup").write_text(f'#!/bin/sh\nexec {sys.executable} -m kbackup "$@"\n')
    (tmp_path / "kbackup").chmod(0o755)
    lines = ["kbackup ba", "kbackup groups ", "kbackup help groups a", "kbackup restore --into-e"]
    lines += ["kbackup cat --output ", "kbackup backup --isolation-level read_c", "kbackup no-such --x"]
    done = subprocess.run(
        ["bash", "--norc", "-c", _SCRIPT, "bash", *lines],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert done.stderr == ""
    completed = ["backup", "show plan apply undo", "apply", "--into-existing", "text json hex", "read_committed", ""]
    assert done.stdout.splitlines() == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_call_kbackup_by_its_variable(shell: str, kbackup: Kbackup) -> None:
    assert f"_KBACKUP_COMPLETE={shell}_complete" in kbackup("completion", shell).out


def test_commands_are_completed_without_their_modules() -> None:
    environ = {"COMP_WORDS": "kbackup r", "COMP_CWORD": "1", cli.COMPLETION_VARIABLE: "bash_complete"}
    done = python("-X", "importtime", "-m", "kbackup", env=environ)
    assert done.stdout.split() == [f"plain,{name}" for name in cli.COMMANDS if name.startswith("r")]
    assert "kbackup.cli.restore" not in done.stderr


@pytest.mark.parametrize(
    ("args", "start", "completed"),
    [
        ("cat", "or", ["orders"]),
        ("info", "", ["clicks", "orders"]),
        ("ls", "cl", ["clicks"]),
        ("find x", "o", ["orders"]),
        ("restore --topic", "o", ["orders"]),
        ("backup --exclude-group", "", ["billing", "late"]),
        ("groups show", "l", ["late"]),
        ("list --label", "", ["before"]),
        ("label --remove", "b", ["before"]),
        ("keep", "", ["before", "latest", "1", "2"]),
        ("info --restore-point", "", ["before", "latest", "1", "2"]),
        ("restore -b", "l", ["latest"]),
        ("cat --output", "j", ["json"]),
        ("restore --with", "a", ["acls"]),
        ("list --archive none --label", "", []),
        ("list --encryption-key command:false --label", "", []),
        ("list --config broken.toml --label", "", []),
    ],
)
def test_names_of_the_archive_are_completed(
    args: str, start: str, completed: list[str], mine: str, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    kbackup("label", "1", "before", "-a", mine)
    monkeypatch.chdir(Path(mine).parent)
    Path("kbackup.toml").write_text(f'archive = "{mine}"\n')
    Path("broken.toml").write_text("archive")
    monkeypatch.setattr(completion, "_COMPLETION_SECONDS", 30.0)
    shell = ShellComplete(cli.cli, {}, "kbackup", cli.COMPLETION_VARIABLE)
    try:
        items = shell.get_completions(args.split(), start)
    finally:
        logging.disable(logging.NOTSET)
    assert [item.value for item in items] == completed


def test_completion_does_not_wait_for_a_slow_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(completion, "load_config", lambda state: ended.wait(30))
    monkeypatch.setattr(completion, "_COMPLETION_SECONDS", 0.05)
    try:
        shell = ShellComplete(cli.cli, {}, "kbackup", cli.COMPLETION_VARIABLE)
        assert shell.get_completions(["cat"], "") == []
    finally:
        logging.disable(logging.NOTSET)
        ended.set()


# `kbackup config`.


@pytest.fixture
def _configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBACKUP_TARGET_CLIENT_ID", "mine")
    Path("kbackup.toml").write_text('archive = "s3://b"\n[backup]\nsegment_bytes = "1MiB"\n')
    Path("p").write_text("max.poll.records=1\n")


@pytest.mark.usefixtures("_configured")
def test_every_value_says_where_it_came_from(kbackup: Kbackup) -> None:
    printed = kbackup("config", "--show", "--master", "local[1]", "--set", "backup.topics=a,b")
    shown = printed.words
    for line in (
        "archive s3://b file kbackup.toml",
        "backup.segment_bytes 1MiB file kbackup.toml",
        "target.client.id mine environment KBACKUP_TARGET_CLIENT_ID",
        "spark.master local[1] flag --master",
        "backup.topics a, b flag --set",
        "backup.split_records 4000000 default",
    ):
        assert line in shown


@pytest.mark.usefixtures("_configured")
def test_config_shows_as_json_where_each_setting_comes_from(kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBACKUP_SOURCE_CONFIG", "p")
    document = kbackup("config", "--json").json
    settings = {setting["key"]: setting for setting in document["settings"]}
    assert settings["backup.segment_bytes"] == {
        "key": "backup.segment_bytes",
        "value": 1 << 20,
        "origin": {"kind": "file", "name": "kbackup.toml"},
    }
    assert settings["restore.restore_id"]["value"] is None
    assert document["notes"] == ["p: max.poll.records is left out: kbackup joins no consumer group"]


@pytest.mark.usefixtures("_configured")
def test_config_lists_every_key_with_its_meaning(kbackup: Kbackup) -> None:
    out = kbackup("config", "--keys").out
    for key in KEYS.values():
        assert f"\n{key.path} " in out
        assert key.doc in out
    document = kbackup("config", "--keys", "--json").json
    assert [key["key"] for key in document["keys"]] == list(KEYS)
    assert document["variables"] == VARIABLES


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("charset", ["latin-1", "ascii", "utf-8"])
def test_names_that_the_charset_of_the_locale_lacks_are_printed(tmp_path: Path, charset: str) -> None:
    """A document means the same in every charset; people get JSON's escapes."""
    archive = f"{tmp_path}/buchhaltung-ä-группа-\N{SMILING FACE WITH SMILING EYES}"
    (tmp_path / "kbackup.toml").write_text(f'archive = "{archive}"\n', encoding="utf-8")
    printed = []
    for form in ("--json", "--wide"):
        done = subprocess.run(
            [sys.executable, "-m", "kbackup", "config", form],
            cwd=tmp_path,
            env={**os.environ, "PYTHONIOENCODING": charset, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        )
        printed.append(done.stdout.decode(charset))
    document, table = printed
    assert archive in json.dumps(json.loads(document), ensure_ascii=False)
    assert (archive if charset == "utf-8" else json.dumps("группа")[1:-1]) in table


_BEFORE_SPARK = """
import sys
import kbackup.cli.{command}
print(*sorted({{"numpy", "pyarrow", "pandas", "boto3", "kafka", "confluent_kafka"}} & sys.modules.keys()))
"""


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_commands_of_spark_import_nothing_slow_before_they_start_it(command: str) -> None:
    code = _BEFORE_SPARK.format(command=command)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
