"""A link with delay between two network namespaces of our own, for servers at one end and clients at the other.

    servers' namespace [tun 10.77.0.1] <-- this process holds every packet back --> [tun 10.77.0.2] clients' namespace

Packets are held back here and not by `tc netem`, which not every kernel has: TCP sees the same round trip, window and
slow start. Needs root, iproute2 (`ip`) and /dev/net/tun. Nothing outside the two namespaces is touched.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from kbackup.errors import UsageError

SERVERS, CLIENTS = "10.77.0.1", "10.77.0.2"
_MTU = 9000
_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_HINT = "run as root, with Debian's package iproute2; or leave the link out by --ends loopback"


class Link:
    """A context manager. `round_trip` in seconds: half of it is added each way."""

    def __init__(self, round_trip: float) -> None:
        self._delay = round_trip / 2
        self._names = [f"kbackup-bench-{os.getpid()}-{end}" for end in ("servers", "clients")]
        self._ends: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="bench-link", daemon=True)

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or shutil.which("ip") is None or not _TUN.exists():
            raise UsageError("a link with delay can't be made here", _HINT)
        try:
            for name, address in zip(self._names, (SERVERS, CLIENTS), strict=True):
                self._make(name, address)
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._remove()

    @property
    def at_servers(self) -> tuple[str, ...]:
        """Return the first words of a command line that runs at the servers' end."""
        return ("ip", "netns", "exec", self._names[0])

    @property
    def at_clients(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._names[1])

    def _make(self, namespace: str, address: str) -> None:
        device = f"kbt{os.getpid() % 10_000_000:07d}{len(self._ends)}"
        _ip("netns", "add", namespace)
        end = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._ends.append(end)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip("link", "set", device, "netns", namespace)
        inside = ("-n", namespace)
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "address", "add", f"{address}/24", "dev", device)
        _ip(*inside, "link", "set", device, "mtu", str(_MTU), "txqueuelen", "10000", "up")

    def _remove(self) -> None:
        for end in self._ends:
            os.close(end)
        there = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        for name in self._names:
            if name in there:
                _ip("netns", "delete", name)

    def _carry(self) -> None:
        """Each packet goes to the other end when its time has come."""
        queues: tuple[deque[tuple[float, bytes]], ...] = (deque(), deque())
        while not self._stopped.is_set():
            due = min((packets[0][0] for packets in queues if packets), default=time.monotonic() + 0.05)
            ready, _, _ = select.select(self._ends, (), (), max(0.0, due - time.monotonic()))
            for end in ready:
                self._take(end, queues[self._ends.index(end)])
            now = time.monotonic()
            for side, packets in enumerate(queues):
                while packets and packets[0][0] <= now:
                    self._give(self._ends[1 - side], packets.popleft()[1])

    def _take(self, end: int, packets: deque[tuple[float, bytes]]) -> None:
        until = time.monotonic() + self._delay
        for _ in range(256):
            try:
                packets.append((until, os.read(end, _MTU + 64)))
            except BlockingIOError:
                return

    def _give(self, end: int, packet: bytes) -> None:
        try:
            os.write(end, packet)
        except BlockingIOError:
            return  # lost, as on any link: TCP sends it again


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}", _HINT)
