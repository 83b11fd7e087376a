"""The command `kbackup migrate`, and the options that its subcommands share. Each subcommand is a module here."""

from __future__ import annotations

from pathlib import Path

import click

from kbackup.cli.common.command_context import LazyGroup
from kbackup.cli.common.options import common_options

metrics_option = click.option(
    "--metrics-url",
    "metrics_urls",
    multiple=True,
    metavar="URL",
    help="Prometheus exporter of a controller: http://controller-1:9404/metrics. [repeatable]",
)
controller_config_option = click.option(
    "--controller-config",
    "controller_files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Properties file of a controller. [repeatable]",
)


_SUBCOMMANDS = ("preflight", "archive", "status", "verify", "rollback", "bootstrap")  # as in the runbook


@click.group(
    "migrate",
    cls=LazyGroup,
    epilog="Example: kbackup migrate preflight",
    subcommands={name: f"{__name__}.{name}" for name in _SUBCOMMANDS},
)
@common_options
def command() -> None:
    """Check, watch, archive and undo a cluster's migration from ZooKeeper to KRaft.

    Kafka itself moves the metadata (KIP-866); kbackup moves nothing.
    """
