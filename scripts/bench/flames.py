"""python -m scripts.bench.flames OUTPUT: a flame graph of the CPU that `kbackup backup` takes on a small topic.

The command runs as users run it, against a real broker and S3 server on this machine. py-spy samples its Python
processes, async-profiler its JVM, at the same rate. The stacks of both go into one HTML page, with the kind of process
as their first frame. Needs root.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from kbackup.errors import KbackupError
from scripts.bench.servers import Servers
from scripts.bench.startup import RECORDS, ROOT, SIZE, environment
from scripts.dev.tools import MissingToolError

_RATE = 200  # samples a second
_PATIENCE = 10  # s
_PROCESS = re.compile(r'process \d+:"(.*)"')
_IMPORTER = "<frozen importlib"
_JVM, _DRIVER, _WORKERS = "JVM", "driver, Python", "daemon and workers, Python"


def python_stacks(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield stacks and their samples from py-spy's raw output.

    The kind of process stands in place of its command line. Frames of the importer, six a module, are left out.
    """
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        commands = [found[1] for frame in frames if (found := _PROCESS.fullmatch(frame))]
        kind = _WORKERS if any("daemon" in command for command in commands) else _DRIVER
        named = (frame for frame in frames if not (_PROCESS.fullmatch(frame) or _IMPORTER in frame))
        yield ";".join([kind, *named]), int(count)


def jvm_stacks(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield stacks and their samples from async-profiler's collapsed output."""
    for line in lines:
        stack, _, count = line.rpartition(" ")
        yield f"{_JVM};{stack}", int(count)


def _profile(servers: Servers, topic: str, py_spy: Path, library: Path, folder: Path) -> Counter[str]:
    python, java = folder / "python.txt", folder / "java.txt"
    agent = f"-agentpath:{library}=start,event=cpu,interval={1000 // _RATE}ms,collapsed,file={java}"
    env = environment(servers, topic, ROOT) | {"JAVA_TOOL_OPTIONS": agent}
    recorder = f"record --subprocesses --gil --rate {_RATE} --format raw".split()
    kbackup = (sys.executable, "-m", "kbackup", "backup", "--json")
    command = (str(py_spy), *recorder, "--output", str(python), "--", *kbackup)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False)
    if done.returncode or not _appears(java):
        raise SystemExit(f"the command was not profiled: {done.stderr.decode(errors='replace')[-2000:]}")
    stacks: Counter[str] = Counter()
    for some in (python_stacks(python.read_text().splitlines()), jvm_stacks(java.read_text().splitlines())):
        for stack, count in some:
            stacks[stack] += count
    return stacks


def _appears(file: Path) -> bool:
    """Wait for the profile that the JVM writes as its last act, after the command's end."""
    until = time.monotonic() + _PATIENCE
    while not (file.exists() and file.read_text().endswith("\n")) and time.monotonic() < until:
        time.sleep(0.1)
    return file.exists()


def _draw(stacks: Counter[str], converter: Path, output: Path, folder: Path) -> None:
    collapsed = folder / "stacks.collapsed"
    collapsed.write_text("".join(f"{stack} {count}\n" for stack, count in stacks.items()))
    title = f"kbackup backup of a small topic: CPU, a sample is {1000 // _RATE} ms"
    options = ("--title", title, "--inverted", "--minwidth", "0.1")
    subprocess.run(("java", "-jar", converter, *options, collapsed, output), check=True)


def main(arguments: list[str]) -> int:
    """Profile one command after one that is not counted, and draw the page."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.flames", description=__doc__)
    parser.add_argument("--py-spy", type=Path, required=True, help="py-spy's program")
    parser.add_argument("--async-profiler", type=Path, required=True, help="libasyncProfiler.so")
    parser.add_argument("--converter", type=Path, required=True, help="async-profiler's jfr-converter.jar")
    parser.add_argument("output", type=Path, help="the HTML page")
    options = parser.parse_args(arguments)
    for tool in (options.py_spy, options.async_profiler, options.converter):
        if not tool.exists():
            raise MissingToolError(f"{tool}: not found; download it first")
    with Servers("minio") as servers, tempfile.TemporaryDirectory(prefix="kbackup-bench-") as folder:
        topic = servers.fill(SIZE, RECORDS)
        command = [sys.executable, "-m", "kbackup", "backup", "--json"]
        env = environment(servers, topic, ROOT)
        subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
        library = options.async_profiler.resolve()
        stacks = _profile(servers, topic, options.py_spy.resolve(), library, Path(folder))
        _draw(stacks, options.converter, options.output.resolve(), Path(folder))
    seconds = {kind: count / _RATE for kind, count in _by_process(stacks).items()}
    print("CPU: " + ", ".join(f"{kind} {value:.1f} s" for kind, value in seconds.items()))
    return os.EX_OK


def _by_process(stacks: Counter[str]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for stack, count in stacks.items():
        kinds[stack.split(";", 1)[0]] += count
    return kinds


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
