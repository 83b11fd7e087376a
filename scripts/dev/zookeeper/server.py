"""One ZooKeeper 3.8 server on a random loopback port."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scripts.dev import tools
from scripts.dev.certificates import Authority
from scripts.dev.jars import zookeeper_jars
from scripts.dev.process import Process, free_ports, listening

_JAAS = """Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required {users};
}};
"""


class ZooKeeper:
    """A server with its data in `folder`; data and ports stay when it stops.

    `users` (name: password) may log in by SASL, DIGEST-MD5; nobody has to, but sees then only what the ACLs of the
    znodes give to everybody. `authority` adds a listener with TLS (`tls_connect`)."""

    def __init__(
        self, folder: Path, users: Mapping[str, str] | None = None, authority: Authority | None = None
    ) -> None:
        self._folder = folder
        self._users = dict(users or {})
        self._port, self._tls_port = free_ports(2)
        self._authority = authority
        self._process: Process | None = None

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def tls_connect(self) -> str:
        return f"127.0.0.1:{self._tls_port}"

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        lines = [f"{key}={value}\n" for key, value in self._config().items()]
        (self._folder / "zoo.cfg").write_text("".join(lines))
        argv = [
            tools.java(),
            *("-cp", str(zookeeper_jars() / "*"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *self._login(),
            *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._folder / "zoo.cfg")),
        ]
        self._process = Process(argv, self._folder / "log")
        self._process.wait_ready(lambda: self._serving(), "ZooKeeper", 60)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let the server answer nothing for a while; its clients stay connected."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _serving(self) -> bool:
        """Return True if the server answers "are you ok?"; the port alone opens earlier."""
        if not listening(self._port):
            return False
        with socket.create_connection(("127.0.0.1", self._port), 2) as asking:
            asking.sendall(b"ruok")
            return asking.recv(16) == b"imok"

    def _config(self) -> dict[str, str]:
        config = {
            "dataDir": str(self._folder / "data"),
            "clientPort": str(self._port),
            "clientPortAddress": "127.0.0.1",
            "tickTime": "1000",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
            "maxClientCnxns": "0",
        }
        if self._users:
            config["authProvider.1"] = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        if self._authority is not None:
            issued = self._authority.issue("zookeeper")
            (self._folder / "key.pem").write_text(issued.certificate + issued.key)
            (self._folder / "trust.pem").write_text(self._authority.certificate)
            config |= {
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "secureClientPort": str(self._tls_port),
                "secureClientPortAddress": "127.0.0.1",
                "ssl.keyStore.location": str(self._folder / "key.pem"),
                "ssl.trustStore.location": str(self._folder / "trust.pem"),
                "ssl.clientAuth": "none",
            }
        return config

    def _login(self) -> list[str]:
        if not self._users:
            return []
        users = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
        file = self._folder / "jaas.conf"
        file.touch(0o600)
        file.write_text(_JAAS.format(users=users))
        return [f"-Djava.security.auth.login.config={file}"]
