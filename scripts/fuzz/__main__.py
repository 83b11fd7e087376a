"""`python -m scripts.fuzz [--seconds N] [--target NAME]`: libFuzzer by atheris, each target in a process of its own.

What it finds stays in --findings; put it into tests/unit/fuzz/findings/<target>/, where the tests try it again.
Exit code 1 where anything was found.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.fuzz.corpus import corpus
from scripts.fuzz.targets import TARGETS

FINDINGS = Path(__file__).parents[2] / "tests" / "unit" / "fuzz" / "findings"
_MEGABYTES = 1024


def fuzz(name: str, seconds: int, findings: Path) -> int:
    """The exit code of a process that fuzzes one target for `seconds`."""
    with tempfile.TemporaryDirectory(prefix="kbackup-fuzz-") as work:
        seeds = [*corpus(name), *(path.read_bytes() for path in (FINDINGS / name).glob("*"))]
        for data in seeds:
            (Path(work) / hashlib.sha256(data).hexdigest()).write_bytes(data)
        findings.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={seconds}", f"-rss_limit_mb={_MEGABYTES}", "-max_len=16384", "-timeout=20"]
        command = [sys.executable, "-m", "scripts.fuzz.run", name, work, *limits]
        command += [f"-artifact_prefix={findings}/{name}-", "-verbosity=0", "-print_final_stats=1"]
        run = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    executed = [line.split()[-1] for line in run.stderr.splitlines() if "number_of_executed_units" in line]
    print(f"{name}: {executed[0] if executed else 'no'} inputs, exit code {run.returncode}", flush=True)
    if run.returncode:
        print(run.stderr[-4000:], file=sys.stderr)
    return run.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()) / "kbackup-fuzz-findings")
    arguments = parser.parse_args()
    codes = [fuzz(name, arguments.seconds, arguments.findings) for name in arguments.target or TARGETS]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
