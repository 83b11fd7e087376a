"""`kbackup serve`: serve an archive to Kafka's own clients."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from kbackup.cli.common.command_context import CommandContext, signal_handler
from kbackup.cli.common.options import (
    archive_command,
    cache_option,
    key_option,
    name_options,
    point_option,
    to_time_option,
)
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import cached_archive_store
from kbackup.config.times import moment_of
from kbackup.util.text import human_size, plural
from kbackup.util.times import time_text

if TYPE_CHECKING:
    from kbackup.serve.logs import ServedArchive
    from kbackup.serve.service import Serving

_SCREEN_SECONDS = 1.0


@archive_command(
    "serve",
    key_option("serve.listen"),
    key_option("serve.advertise"),
    point_option(default="latest"),
    to_time_option("Serve the topics as they were at this time: each log ends there."),
    name_options("serve.topics"),
    key_option("serve.follow"),
    key_option("serve.memory_size", "--memory"),
    key_option("serve.commits"),
    key_option("serve.users"),
    key_option("serve.tls_certificate"),
    key_option("serve.tls_key"),
    key_option("serve.allow_plain"),
    key_option("serve.metrics_listen", "--metrics-listen"),
    cache_option,
    argument=True,
    example="kbackup serve --restore-point 41 --topic orders",
)
def command(context: CommandContext, restore_point: str, to_time: str | None) -> int:
    """Serve an archive to Kafka's own clients, read-only, until SIGTERM or Ctrl-C.

    Consumers, kcat, AKHQ, Spark, Flink, MirrorMaker 2 and Kafka's shell tools read topics as they were, at their own
    offsets, as if the archive were a cluster. Nothing is written to the archive.
    """
    from kbackup.archive.query.selection import Selection
    from kbackup.serve.logs import Choosing
    from kbackup.serve.service import ArchiveServer, Listening, choose_contents

    options = context.config.serve
    reporter = context.reporter
    # Before the archive is opened, which may take a while: an address that can't be used is refused at once.
    listening = Listening.of(options)
    selection = Selection.of(options.topics, options.exclude_topics)
    moment = moment_of("--to-time", to_time)
    choosing = Choosing(selection, restore_point, moment, options.follow)
    store = cached_archive_store(context)
    archive, served = choose_contents(store, choosing)
    reporter.warning(*served.warnings)
    screen = _Screen(reporter, served)

    def started(serving: Serving) -> None:
        screen.serving = serving
        reporter.document(
            {
                "bootstrap_servers": serving.bootstrap,
                "archive": served.url,
                "restore_point": served.restore_point,
                "to_time": time_text(served.to_time) if served.to_time is not None else None,
                "topics": len(served.topics),
                "partitions": len(served.logs),
                "groups": len(served.groups),
            },
            at_once=True,
        )
        reporter.line(f"bootstrap.servers={serving.bootstrap}")
        reporter.note(f"serving {_summary(served)}, read-only; Ctrl-C ends it")

    server = ArchiveServer(
        store=store,
        choosing=choosing,
        listening=listening,
        memory=options.memory_size,
        refuses_commits=options.commits == "refuse",
        started=started,
        moved=screen.moved,
    )
    with ExitStack() as stack:
        _serve_metrics(options.metrics_listen, stack, reporter)
        stack.enter_context(screen.shown())
        _run_until_stopped(lambda: server.run(archive, served))
    reporter.note("ended")
    return 0


def _summary(served: ServedArchive) -> str:
    topics = plural(len(served.topics), "topic")
    partitions = plural(len(served.logs), "partition")
    return f"{topics} with {partitions} of {served.url} as of {served.as_of}"


def _run_until_stopped(run: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run until Ctrl-C or SIGTERM, which end it at once."""

    async def until_stopped() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(run())

        def stop(number: int, stack: FrameType | None) -> None:
            loop.call_soon_threadsafe(task.cancel)

        with signal_handler(stop, signal.SIGINT, signal.SIGTERM):
            try:
                await task
            except asyncio.CancelledError:
                return

    asyncio.run(until_stopped())


def _serve_metrics(listen: str, stack: ExitStack, reporter: Reporter) -> None:
    if not listen:
        return
    from kbackup.metrics.server import Health, Server

    # A server that answers at all is well: it has nothing that could grow old.
    health = Health(float("inf"))
    server = stack.enter_context(Server(listen, health))
    reporter.note(f"metrics on port {server.port}")


@dataclass
class _Screen:
    """A line on a terminal that shows clients and bytes."""

    reporter: Reporter
    served: ServedArchive
    serving: Serving | None = None

    def moved(self, served: ServedArchive) -> None:
        """Say that another restore point is served."""
        self.served = served
        self.reporter.note(f"serving {_summary(served)}")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the line until the end, if stderr is a terminal."""
        if self.reporter.quiet or not sys.stderr.isatty():
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._show, args=(ended,), name="kbackup-screen", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _show(self, ended: threading.Event) -> None:
        before = 0
        while not ended.wait(_SCREEN_SECONDS):
            if self.serving is None:
                continue
            sent = self.serving.fetching.counts.bytes
            rate = human_size((sent - before) / _SCREEN_SECONDS)
            before = sent
            clients = plural(self.serving.server.clients, "connection")
            print(f"\r\x1b[K{clients}, {human_size(sent)} sent, {rate}/s", end="", file=sys.stderr, flush=True)
