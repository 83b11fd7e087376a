"""The command `kbackup migrate` and its subcommands."""

from __future__ import annotations

import click

from kbackup.cli.common.lazy import LazySubcommands
from kbackup.cli.common.options import common_options

SUBCOMMANDS = ("preflight", "archive", "status", "verify", "rollback", "bootstrap")
"""In the order of the runbook."""


@click.group("migrate", cls=LazySubcommands, package=__package__, subcommands=SUBCOMMANDS)
@common_options
def command() -> None:
    """Check, watch, archive and undo a cluster's migration from ZooKeeper to KRaft.

    Kafka itself moves the metadata (KIP-866); kbackup moves nothing.
    """
