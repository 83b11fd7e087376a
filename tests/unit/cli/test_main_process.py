"""Processes of kbackup: signals, interrupts, closed pipes, and their imports."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kbackup import cli
from tests.support.loaded_modules import loaded_modules

HEAVY = {"pyspark", "boto3", "botocore", "confluent_kafka", "pyarrow", "numpy"}


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
cli.COMMANDS["it"] = ("it", "")
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
    with subprocess.Popen(
        [sys.executable, "-m", "kbackup", "config", "--keys"], stdout=-1, stderr=-1, text=True
    ) as process:
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
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, module, str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
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
    done = subprocess.run([sys.executable, "-c", _NATIVE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "cleaned up\n", "")


def test_the_installed_command_is_the_module_s() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"kbackup": "kbackup.__main__:main"}
