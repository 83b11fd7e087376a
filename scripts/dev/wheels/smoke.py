"""Commands that show that an installation is whole: its data files, compiled kernels, extras and Spark's workers."""

from __future__ import annotations

import json

from kbackup.errors import KbackupError
from scripts.dev.wheels.environment import ROOT, Environment

_ARCHIVE = str(ROOT / "tests" / "golden" / "java" / "archive")
_IMPORTS = (
    "import kbackup.kafka.native, kbackup.web.app, kbackup.zookeeper, delta, moto;"
    "import kbackup.schemas.avro, kbackup.schemas.protobuf, jq"
)


def try_commands(environment: Environment) -> int:
    """Run the commands, and return their number; an error that one of them prints is an error."""
    version = _output(environment, "kbackup", "--version")
    shown = _output(environment, "kbackup", "--help")
    records = _output(environment, "kbackup", "cat", "orders.v1", "--archive", _ARCHIVE, "--json")
    verified = _output(environment, "kbackup", "verify", "--master", "local[1]", "--json", _ARCHIVE)
    imported = _output(environment, "python", "-c", _IMPORTS)
    report = json.loads(verified)
    _check("--version", version.startswith("kbackup "), version)
    _check("--help", "Back up Apache Kafka" in shown, shown)
    _check("cat", len(records.splitlines()) == 145, records)
    _check("verify", report["findings"] == [] and report["read_records"] == 385, verified)
    _check("the imports of the extras", imported == "", imported)
    page = environment.folder / "share" / "man" / "man1" / "kbackup.1"
    _check("man", page.is_file(), f"{page} is missing")
    return 5


def _output(environment: Environment, name: str, *arguments: str) -> str:
    run = environment.run(name, *arguments)
    label = " ".join([name, *arguments])
    _check(
        label,
        run.returncode == 0 and run.stderr == "",
        f"exit code {run.returncode}\n{run.stdout}{run.stderr}",
    )
    return run.stdout


def _check(label: str, passes: bool, output: str) -> None:
    if not passes:
        raise KbackupError(
            f"{label} did not do its work: {output[-3000:]}", "mend the package or its metadata"
        )
