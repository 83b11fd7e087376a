"""Options that subcommands of `kbackup migrate` share."""

from __future__ import annotations

from pathlib import Path

import click

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
