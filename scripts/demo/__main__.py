"""`make demo`: a Kafka cluster is filled, backed up, wiped and restored before your eyes; it ends by itself.

Everything it starts listens on loopback and lives in temporary folders; all of it is gone at the end. The exit
code is 0 when every partition and every consumer group is as it was. `--keep` leaves the servers running until
Ctrl-C, to look around.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path

from kbackup.cli.common.output import Reporter
from kbackup.cli.common.tables import Column
from kbackup.errors import KbackupError
from scripts.demo.shop import GROUPS, TOPICS, Shop
from scripts.demo.state import GroupRow, PartitionRow, Standing, State, capture, compare_groups, compare_partitions
from scripts.dev.kafka import Broker
from scripts.dev.s3 import MotoServer
from scripts.dev.tools import MissingToolError

_ROOT = Path(__file__).parents[2]
_BUCKET = "shop-backups"
_STEPS = 8


class Demo:
    """The running demo. `folder` is where the user of the commands stands."""

    def __init__(self, broker: Broker, s3: MotoServer, folder: Path) -> None:
        self._broker, self._folder = broker, folder
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(("KBACKUP_", "AWS_"))} | {
            "AWS_ACCESS_KEY_ID": s3.access_key,
            "AWS_SECRET_ACCESS_KEY": s3.secret_key,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        s3.create_bucket(_BUCKET)
        self._config = f"""\
archive = "s3://{_BUCKET}/nightly"

[s3]
endpoint_url = "{s3.endpoint_url}"
region = "{s3.region}"

[source]
bootstrap.servers = "{broker.bootstrap}"

[target]
bootstrap.servers = "{broker.bootstrap}"
"""
        (folder / "kbackup.toml").write_text(self._config)

    def run(self) -> bool:
        """Run all steps; return True when the restored topics and groups equal the original ones."""
        shop = Shop(self._broker)
        say(2, "Open a shop: orders, customers (compacted), payments (transactions), clicks")
        shop.open()
        self._tell(self._state())
        say(3, "Back it up: all topics, all groups. The user's kbackup.toml:")
        print("".join(f"      {line}\n" for line in self._config.splitlines() if line), end="")
        self._kbackup("backup")
        say(4, "A day goes by: more of everything, and the groups have moved on")
        shop.go_on()
        before = self._state()
        self._tell(before)
        say(5, "Back it up again: only what is new is read")
        self._kbackup("backup")
        self._kbackup("list")
        say(6, "Disaster: every topic and every group is deleted")
        shop.wipe()
        say(7, "Restore the last restore point")
        self._kbackup("restore")
        say(8, "Compare every partition and every group with what was there before the disaster")
        return report(before, self._state())

    def wait_for_interrupt(self) -> None:
        """Keep all servers running until Ctrl-C."""
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        print(f"\nAll is still running, until Ctrl-C. In another terminal:\n\n  cd {self._folder}")
        print(f"  export {' '.join(f'{name}={self._env[name]}' for name in names)}")
        print(f"  {Path(sys.executable).with_name('kbackup')} info", flush=True)
        signal.pause()

    def _state(self) -> State:
        topics = {name: partitions for name, (partitions, _) in TOPICS.items()}
        return capture(self._broker.client(), topics, list(GROUPS))

    def _tell(self, state: State) -> None:
        counts = dict.fromkeys(TOPICS, 0)
        for tp, records in state.records.items():
            counts[tp.topic] += len(records)
        said = ", ".join(f"{count:,} {topic}" for topic, count in counts.items())
        print(f"      {said}; groups: {', '.join(GROUPS)}", flush=True)

    def _kbackup(self, *arguments: str) -> None:
        """Run the command as a user would; `KbackupError` where it fails."""
        print(f"\n$ kbackup {' '.join(arguments)}", flush=True)
        argv = [sys.executable, "-m", "kbackup", *arguments]
        with subprocess.Popen(argv, cwd=self._folder, env=self._env) as child:
            try:
                code = child.wait()
            except BaseException:
                child.terminate()
                child.wait()
                raise
        if code:
            raise KbackupError(f"kbackup {' '.join(arguments)} ended with exit code {code}", "its words are above")


def _same(row: PartitionRow | GroupRow) -> str:
    return "same" if row.same else "DIFFERENT"


def _offset(standing: Standing | None) -> int | None:
    return standing.offset if standing is not None else None


def _next_record(row: GroupRow) -> int | str:
    if row.before is None or row.before.passed >= row.of:
        return "(end)"
    return row.before.passed + 1


_PARTITIONS: Sequence[Column[PartitionRow]] = (
    Column("partition", "tp", str),
    Column("records before", "records", itemgetter(0)),
    Column("after", "records", itemgetter(1)),
    Column("contents before", "digests", itemgetter(0)),
    Column("after", "digests", itemgetter(1)),
    Column("", _same),
)
_GROUPS: Sequence[Column[GroupRow]] = (
    Column("group", "group"),
    Column("partition", "tp", str),
    Column("offset before", "before", _offset),
    Column("after", "after", _offset),
    Column("next is record", _next_record),
    Column("of", "of"),
    Column("", _same),
)


def report(before: State, after: State) -> bool:
    """Print the comparison; whether all is the same."""
    out = Reporter()
    partitions, groups = compare_partitions(before, after), compare_groups(before, after)
    print()
    out.table(_PARTITIONS, partitions)
    print()
    out.table(_GROUPS, groups)
    wrong = [str(p.tp) for p in partitions if not p.same] + [f"{g.group} on {g.tp}" for g in groups if not g.same]
    if wrong:
        print(f"\nDIFFERENT after the restore: {', '.join(wrong)}")
    else:
        print(
            f"\nThe same: {sum(p.records[1] for p in partitions):,} records in {len(partitions)} partitions, "
            f"{len(groups)} positions of {len(GROUPS)} groups.\n"
            "(Contents: keys, values, headers and timestamps, in order. Offsets close up where records were missing.)"
        )
    return not wrong


def say(step: int, text: str) -> None:
    print(f"\n[{step}/{_STEPS}] {text}", flush=True)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--keep"]):
        print(__doc__, file=sys.stderr)
        return 2
    # SIGTERM ends us as Ctrl-C does, so that what we started is stopped and removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with ExitStack() as stack:
        say(1, "Start a Kafka broker and an S3 server (the first time, Kafka is fetched: 44 MB)")
        broker = stack.enter_context(Broker())
        s3 = stack.enter_context(MotoServer())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kbackup-demo-"))
        print(f"      Kafka at {broker.bootstrap}, S3 at {s3.endpoint_url}", flush=True)
        demo = Demo(broker, s3, Path(folder))
        same = demo.run()
        print(f"\nThat took {time.monotonic() - began:.0f} s.")
        if "--keep" in arguments:
            demo.wait_for_interrupt()
    if same:
        print(
            "All of it is gone again. Next, with your own cluster (README.md has more):\n\n"
            f"  export KBACKUP_SOURCE_BOOTSTRAP_SERVERS=broker:9092 KBACKUP_ARCHIVE=/var/backups/kafka\n"
            f"  {Path(sys.executable).with_name('kbackup')} backup\n\n"
            "or `make demo` with a look around: .venv/bin/python -m scripts.demo --keep"
        )
    return 0 if same else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
