"""`kbackup ui`: show an archive in a browser."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from kbackup.archive.schemas import archived_schemas
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import command_line
from kbackup.cli.common.options import archive_command, cache_option, key_option
from kbackup.cli.common.session import cached_archive_store, state_store
from kbackup.cli.restore import command as restore
from kbackup.errors import UsageError
from kbackup.jobs.decoding import Decoding
from kbackup.metrics.server import parse_address

if TYPE_CHECKING:
    from kbackup.archive.models import Schemas
    from kbackup.web.guard import Access

_MIN_TOKEN = 16  # characters
_GRACE = 3  # s, for requests in progress at the end


@archive_command(
    "ui",
    key_option("ui.listen"),
    key_option("schema_registry.url", "--schema-registry", help="URL of the schema registry to decode with."),
    key_option("schema_registry.ca_bundle", "--schema-registry-ca"),
    cache_option,
    click.option(
        "--no-token", is_flag=True, help="Ask for no token: everybody who reaches the address sees every record."
    ),
    example="kbackup ui --listen 127.0.0.1:8080",
)
def command(context: CommandContext, no_token: bool) -> int:
    """Serve a web page that shows the archive, until SIGTERM or Ctrl-C.

    The page changes nothing. Its token is ui.token, or a new one in the printed link. It speaks HTTP: from other
    machines use a proxy with TLS or an SSH tunnel.
    """
    try:
        import uvicorn

        from kbackup.web.app import make_app
        from kbackup.web.archive_cache import ArchiveCache
        from kbackup.web.decoding import FieldDecoder
    except ModuleNotFoundError as error:
        if str(error.name).startswith("kbackup"):
            raise
        raise UsageError(
            f"the package {error.name} of 'kbackup ui' is not installed", "install it: pip install 'kafka-kbackup[web]'"
        ) from error

    registry = context.config.schema_registry

    def decoding_by(schemas: Schemas | None) -> Decoding:
        decoders = archived_schemas(schemas, registry).decoders()
        return Decoding(decoders, mm2=True)

    # The address comes before the archive: whoever gave a port that is taken learns it at once.
    listener = _listen(context.config.ui.listen)
    with listener.socket:
        access = _access(context, listener, no_token)
        store = cached_archive_store(context)
        state = state_store(context, store)
        cache = ArchiveCache(store, state=state, rules=context.config.backup)
        app = make_app(cache, access, partial(command_line, restore), FieldDecoder(decoding_by))
        config = uvicorn.Config(
            app,
            log_config=None,
            # Lines of an access log would hold queries, and so the token.
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE,
        )
        _announce(context, listener, access)
        try:
            uvicorn.Server(config).run(sockets=[listener.socket])
        except KeyboardInterrupt:
            # uvicorn ends by itself at Ctrl-C, and raises the interrupt afterwards.
            context.reporter.note("ended")
    return 0


class _Listener(NamedTuple):
    socket: socket.socket
    host: str
    port: int
    loopback: bool


def _listen(listen: str) -> _Listener:
    """Bind the address of `--listen`. Raises `UsageError` if that fails."""
    host, port = parse_address(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound_socket = socket.socket(family)
        try:
            bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound_socket.bind(address)
            bound_socket.listen(100)
        except OSError:
            bound_socket.close()
            raise
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"can't listen on {listen}: {why}", "choose another --listen") from error
    bound = bound_socket.getsockname()
    ip = ipaddress.ip_address(str(bound[0]).partition("%")[0])
    # Nobody can open the address 0.0.0.0, which stands for all addresses of this machine.
    shown = socket.gethostname() if ip.is_unspecified else host
    if ":" in shown:
        shown = f"[{shown}]"
    return _Listener(bound_socket, shown, int(bound[1]), ip.is_loopback)


def _access(context: CommandContext, listener: _Listener, no_token: bool) -> Access:
    from kbackup.web.guard import Access

    options = context.config.ui
    if options.token is not None and len(options.token) < _MIN_TOKEN:
        raise UsageError(
            f"ui.token has fewer than {_MIN_TOKEN} characters", "make one that can't be guessed: openssl rand -hex 16"
        )
    if options.token is None and not no_token and not listener.loopback and not sys.stdout.isatty():
        raise UsageError(
            "a new token would be printed into a log",
            "set ui.token, or KBACKUP_UI_TOKEN in the pod's secret: openssl rand -hex 16",
        )
    token = None if no_token else options.token or secrets.token_urlsafe(24)
    names = {"localhost", socket.gethostname(), listener.host, *options.hosts}
    lower_names = frozenset(name.lower() for name in names)
    # Browsers send cookies to every port of a host: each server needs a name of its own.
    return Access(lower_names, token, f"kbackup-ui-{listener.port}")


def _announce(context: CommandContext, listener: _Listener, access: Access) -> None:
    """Print the address, and with it a new token; nothing else prints a token."""
    is_new = access.token is not None and access.token != context.config.ui.token
    url = f"http://{listener.host}:{listener.port}/"
    if is_new:
        url += f"?token={access.token}"
    context.reporter.document({"url": url, "archive": context.archive}, at_once=True)
    context.reporter.line(url)
    if access.token is None:
        who = "on this machine" if listener.loopback else "who reaches this address"
        context.reporter.note(f"the page asks for no token: everybody {who} sees every record")
    elif not is_new:
        context.reporter.note("the page asks for ui.token")
    if not listener.loopback:
        context.reporter.note("the page is HTTP without TLS: others on the network can read it")
    context.reporter.note("Ctrl-C ends the server")
