"""`kbackup ui`: a web page to look into an archive with."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING, NamedTuple

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.key_options import key_option
from kbackup.cli.common.local_cache import looked_into
from kbackup.cli.common.options import archive_option, cache_option, common_options, s3_options
from kbackup.errors import UsageError
from kbackup.metrics.server import parse_address

if TYPE_CHECKING:
    from kbackup.web.guard import Access

_SHORTEST = 16  # characters of a token
_PATIENCE = 3  # s, for answers under way when it ends


@click.command("ui")
@common_options
@archive_option
@key_option("ui.listen", "--listen")
@cache_option
@s3_options
@click.option(
    "--no-token", is_flag=True, help="Ask for no token. Everybody who reaches the address sees every record."
)
@pass_frame
def command(frame: Frame, no_token: bool) -> int:
    """Serve a web page that shows the archive, until SIGTERM or Ctrl-C.

    The page changes nothing. It asks for a token: ui.token, or a new one in the printed link. It speaks HTTP: from
    other machines use a proxy with TLS or an SSH tunnel.
    """
    try:
        import uvicorn

        from kbackup.web.app import make_app
        from kbackup.web.archive_cache import Held
    except ModuleNotFoundError as error:
        if str(error.name).startswith("kbackup"):
            raise
        raise UsageError(
            f"kbackup ui needs the package {error.name}, which is not installed",
            "pip install 'kafka-kbackup[web]'",
        ) from error

    place = _listening(frame.config.ui.listen)
    with place.socket:
        access = _access(frame, place, no_token)
        held = Held(looked_into(frame))
        config = uvicorn.Config(
            make_app(held, access),
            log_config=None,
            access_log=False,  # its lines have queries in them, and so the token
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_PATIENCE,
        )
        _announce(frame, place, access)
        try:
            uvicorn.Server(config).run(sockets=[place.socket])
        except KeyboardInterrupt:  # the server has ended, and says why
            frame.reporter.note("ended")
    return 0


class _Place(NamedTuple):
    socket: socket.socket
    host: str
    port: int
    loopback: bool


def _listening(listen: str) -> _Place:
    """`UsageError` where the address can't be bound."""
    host, port = parse_address(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(100)
        except OSError:
            made.close()
            raise
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"can't listen on {listen}: {why}", "choose another --listen") from error
    bound = made.getsockname()
    found = ipaddress.ip_address(str(bound[0]).partition("%")[0])
    shown = socket.gethostname() if found.is_unspecified else host
    return _Place(made, f"[{shown}]" if ":" in shown else shown, int(bound[1]), found.is_loopback)


def _access(frame: Frame, place: _Place, no_token: bool) -> Access:
    """Who is let in: the token is ui.token or a new one."""
    from kbackup.web.guard import Access

    options = frame.config.ui
    if options.token is not None and len(options.token) < _SHORTEST:
        raise UsageError(
            f"ui.token has less than {_SHORTEST} characters",
            "make one that can't be guessed: openssl rand -hex 16",
        )
    token = None if no_token else options.token or secrets.token_urlsafe(24)
    names = {"localhost", socket.gethostname(), place.host, *options.hosts}
    return Access(frozenset(name.lower() for name in names), token, f"kbackup-ui-{place.port}")


def _announce(frame: Frame, place: _Place, access: Access) -> None:
    """Prints the address, once; a token of its own is printed nowhere else."""
    made = access.token is not None and access.token != frame.config.ui.token
    url = f"http://{place.host}:{place.port}/{f'?token={access.token}' if made else ''}"
    frame.reporter.document({"url": url, "archive": frame.archive})
    frame.reporter.line(url)
    if access.token is None:
        who = "on this machine" if place.loopback else "who reaches this address"
        frame.reporter.note(f"it asks for no token: everybody {who} sees every record")
    elif not made:
        frame.reporter.note("it asks for ui.token")
    if not place.loopback:
        frame.reporter.note("whoever listens on the network reads along: it is HTTP, without TLS")
    frame.reporter.note("Ctrl-C ends it")
