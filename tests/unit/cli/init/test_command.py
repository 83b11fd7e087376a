"""`init` without a terminal, and its dialog over answers that are typed."""

from __future__ import annotations

import io
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.errors import UnreachableError
from kbackup.jobs import check
from kbackup.jobs.check import Configured, Steps
from tests.support.terminals import Terminal

FLAGS = ("init", "--yes", "--bootstrap-server", "h:9092", "--archive", "s3://b/p", "--schedule", "none")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The archives and topics that were tried; a bucket named wrong can't be reached."""
    addresses: list[str] = []

    def attempt(steps: Steps, configured: Configured) -> None:
        with steps.trying("a trial") as step:
            config = configured()
            addresses.append(f"{config.archive} {','.join(config.backup.topics)}".rstrip())
            if config.archive == "s3://wrong":
                raise UnreachableError("no bucket wrong", "make it")
            step.detail = "works"

    for name in ("try_cluster", "try_archive", "try_selection"):
        monkeypatch.setattr(check, name, attempt)
    return addresses


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `init` on a terminal with answers, one a line."""

    def run(*answers: str, arguments: tuple[str, ...] = ()) -> int:
        keyboard = Terminal("".join(f"{answer}\n" for answer in answers))
        monkeypatch.setattr(sys, "stdin", keyboard)
        code = cli.main(["init", *arguments])
        assert keyboard.read() == "", "answers that nothing asked for"
        return code

    return run


def test_options_are_the_answers(tried: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    more = ("-t", "orders", "-t", "/x/", "--set", "source.sasl.password=${file:/run/secret}", "--no-check")
    assert cli.main([*FLAGS, *more, "--json"]) == 0
    assert tomllib.loads(Path("kbackup.toml").read_text()) == {
        "archive": "s3://b/p",
        "source": {"bootstrap": {"servers": "h:9092"}, "sasl": {"password": "${file:/run/secret}"}},
        "backup": {"topics": ["orders", "/x/"]},
    }
    report = json.loads(capsys.readouterr().out)
    assert report["files"] == [report["config"]] == [str(Path("kbackup.toml").absolute())]
    assert report["next"] == ["kbackup check --spark", "kbackup backup"]
    assert tried == []


def test_failed_trials_write_nothing(tried: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*FLAGS, "--archive", "s3://wrong"]) == 14
    assert tried == ["s3://wrong", "s3://wrong"], "the archive, and the selection with the cluster"
    out, err = capsys.readouterr()
    assert "FAILED   a trial: no bucket wrong" in out
    assert err == "nothing was written\n"
    assert list(Path().iterdir()) == []


def test_a_file_is_overwritten_only_when_told(tried: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text("mine")
    assert cli.main([*FLAGS, "--config", "mine.toml"]) == 1
    assert "mine.toml exists; nothing was written\nhint: give --overwrite" in capsys.readouterr().err
    assert Path("mine.toml").read_text() == "mine"
    assert cli.main([*FLAGS, "--config", "mine.toml", "--overwrite"]) == 0
    assert tomllib.loads(Path("mine.toml").read_text())["archive"] == "s3://b/p"
    assert "kbackup backup --config " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("init", "--yes", "-a", "s3://b"), "source.bootstrap.servers is not set"),
        (("init", "--yes", "--bootstrap-server", "h:1"), "archive is not set"),
        ((*FLAGS, "--set", "source.sasl.password=x"), "source.sasl.password is a secret"),
        ((*FLAGS, "--run-at", "25:00"), "25:00 is not a time of the day"),
        (("init",), "stdin is not a terminal"),
    ],
)
def test_refusals(
    arguments: tuple[str, ...],
    message: str,
    tried: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert cli.main(list(arguments)) == 2
    assert message in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_an_answer_that_fails_is_corrected(tried: list[str], typed: Callable[..., int]) -> None:
    cluster = ("h:9092", "SSL", "/ca.pem")
    archive = ("s3://wrong", "http://minio:9000", "", "", "correct", "s3://right", "", "eu-1", "")
    selection = ("/(/", "orders, /x/", "", "", "")
    assert typed(*cluster, *archive, *selection, "none") == 0
    assert tried == ["None", "s3://wrong", "s3://right", "s3://right orders,/x/"]
    assert tomllib.loads(Path("kbackup.toml").read_text()) == {
        "archive": "s3://right",
        "source": {
            "bootstrap": {"servers": "h:9092"},
            "security": {"protocol": "SSL"},
            "ssl": {"ca": {"location": "/ca.pem"}},
        },
        "s3": {"endpoint_url": "http://minio:9000", "region": "eu-1"},
        "backup": {"topics": ["orders", "/x/"]},
    }


def test_answers_that_fail_may_be_kept(tried: list[str], typed: Callable[..., int]) -> None:
    answers = ("h:1", "", "s3://wrong", "", "", "", "keep", "", "", "", "", "keep", "none")
    assert typed(*answers) == 14
    assert tomllib.loads(Path("kbackup.toml").read_text())["archive"] == "s3://wrong"


def test_options_are_the_first_answers(tried: list[str], typed: Callable[..., int]) -> None:
    arguments = (*FLAGS[2:6], "-t", "orders", "--schedule", "kubernetes", "--image", "reg/kb")
    assert typed("", "", "", "", "", "", "-", "", "", "", "", "04:00", "", arguments=arguments) == 0
    assert sorted(path.name for path in Path().iterdir()) == ["kbackup-values.yaml", "kbackup.toml"]
    assert 'schedule: "0 4 * * *"' in Path("kbackup-values.yaml").read_text()
    assert "orders" not in Path("kbackup.toml").read_text(), "'-' removes an answer"


def test_a_file_is_overwritten_after_a_question(tried: list[str], typed: Callable[..., int]) -> None:
    Path("kbackup.toml").write_text("mine")
    assert typed("n") == 1
    assert Path("kbackup.toml").read_text() == "mine"


@pytest.mark.parametrize("answers", [(), ("h:1", ""), ("h:1", "", "s3://b", "", "", "", "", "", "", "")])
def test_an_end_of_input_leaves_nothing(answers: tuple[str, ...], tried: list[str], typed: Callable[..., int]) -> None:
    assert typed(*answers) == 130
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("tried")
def test_paths_in_printed_commands_are_quoted_and_hold_no_controls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my $(backups)"
    folder.mkdir()
    assert cli.main([*FLAGS, "--config", str(folder / "kbackup.toml")]) == 0
    assert f"--config '{folder}/kbackup.toml'" in capsys.readouterr().out
    variable = ("--set", "source.sasl.password=${env:KAFKA PASSWORD}", "--schedule", "systemd", "--overwrite")
    monkeypatch.setenv("KAFKA PASSWORD", "x")
    assert cli.main([*FLAGS, *variable, "--config", str(folder / "kbackup.toml")]) == 0
    assert f"write 'KAFKA PASSWORD'=… into '{folder}/kbackup.env'," in capsys.readouterr().out
    monkeypatch.setenv("JAVA_HOME", "/opt\nUser=root")
    assert cli.main([*FLAGS, *variable, "--config", str(folder / "kbackup.toml")]) == 2
    assert "the path of JAVA_HOME, /opt\\nUser=root, can't be used" in capsys.readouterr().err
    for sign in ("\n", "\x1b"):
        assert cli.main([*FLAGS, "--config", f"{tmp_path}/a{sign}User=root.toml"]) == 2
        assert "choose a path without control characters" in capsys.readouterr().err
