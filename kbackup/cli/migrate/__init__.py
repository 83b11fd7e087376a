"""Options that subcommands of `kbackup migrate` share."""

from __future__ import annotations

from pathlib import Path

import click

from kbackup.cli.common.frame import LazySubcommands
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


# The command `kbackup migrate` and its subcommands.


SUBCOMMANDS = ("preflight", "archive", "status", "verify", "rollback", "bootstrap")
"""In the order of the runbook."""


@click.group("migrate", cls=LazySubcommands, package=__package__, subcommands=SUBCOMMANDS)
@common_options
def command() -> None:
    """Check, watch, archive and undo a cluster's migration from ZooKeeper to KRaft.

    Kafka itself moves the metadata (KIP-866); kbackup moves nothing.
    """


# `kbackup migrate`: check, watch and archive a migration from ZooKeeper to KRaft. Each subcommand is a module here.


__all__ = ["command"]
