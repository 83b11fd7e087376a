"""The look for secrets that got out finds them: by itself, and as the end of a test run."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.support.secrets import Watch

ROOT = Path(__file__).parents[2]

pytest_plugins = ["pytester"]


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_a_secret_is_found_and_named_and_not_shown(watch: Watch) -> None:
    secret = watch.make("the password")
    watch.look_at("a log", f"log in with {secret}!")
    assert watch.hits == ["a log holds the password"]


def test_clean_texts_pass(watch: Watch) -> None:
    watch.make("the password")
    for text in ("", None, b"", "hush-", "a" * 1000):
        watch.look_at("a log", text)
    assert watch.hits == []


@pytest.mark.parametrize("before", ["", "u:", "user:", "some:"])
@pytest.mark.parametrize("after", ["", "!", "!!", "!!!"])
def test_base64_hides_nothing(watch: Watch, before: str, after: str) -> None:
    secret = watch.make("the password")
    watch.look_at("a header", base64.b64encode(f"{before}{secret}{after}".encode()))
    assert watch.hits == ["a header holds the password"]


def test_files_are_looked_into_but_for_inputs(watch: Watch, tmp_path: Path) -> None:
    secret = watch.make("the key")
    for name in ("kbackup.toml", "client.properties", "report.json", "deep/er/log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"x{secret}x")
    watch.look_into(tmp_path)
    assert watch.hits == [f"{tmp_path}/deep/er/log holds the key", f"{tmp_path}/report.json holds the key"]


def test_secrets_too_short_to_search_are_refused(watch: Watch) -> None:
    with pytest.raises(ValueError, match="so short"):
        watch.know("the password", "secret")


LEAKS = {
    "stdout": "print(secret)",
    "log": "logging.getLogger().warning(secret)",
    "file": "(tmp_path / 'report.json').write_text(secret)",
    "read_back": "print(secret); capsys.readouterr()",
    "child": "subprocess.run(['cat'], input=secret.encode(), capture_output=True)",
    "input": "(tmp_path / 'kbackup.toml').write_text(secret)",
    "nowhere": "assert secret",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_leaks_fails(workers: int, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = _run(pytester, monkeypatch, *LEAKS, workers=workers)
    ended.assert_outcomes(passed=len(LEAKS))
    assert ended.ret == pytest.ExitCode.TESTS_FAILED
    found = [line for line in ended.outlines if " holds the secret of " in line]
    assert sorted(line.rpartition(" ")[2] for line in found) == ["child", "file", "log", "read_back", "stdout"]
    ended.stdout.no_fnmatch_line("*hush-*")


@pytest.mark.exhaustive
def test_a_run_that_leaks_nothing_passes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = _run(pytester, monkeypatch, "input", "nowhere")
    ended.assert_outcomes(passed=2)
    assert ended.ret == pytest.ExitCode.OK


def _run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *leaks: str, workers: int = 0) -> pytest.RunResult:
    """A run of tests that leak so, in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    tests = [
        f"def test_{leak}(tmp_path, capsys):\n    secret = make('the secret of {leak}')\n    {LEAKS[leak]}\n"
        for leak in leaks
    ]
    pytester.makepyfile("import logging, subprocess\nfrom tests.support.secrets import make\n" + "\n".join(tests))
    return pytester.runpytest_subprocess("-n", str(workers), "-p", "tests.support.watching", "-p", "no:cacheprovider")
