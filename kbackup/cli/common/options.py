"""The options that commands share.

None of them becomes a parameter of a command: their values go to `State`, and a command reads the merged configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kbackup.cli.common.key_options import F, cluster_options, key_option, options
from kbackup.cli.common.metrics_file import OPTION
from kbackup.cli.common.point_options import point_option, to_time_option
from kbackup.cli.common.state_callbacks import (
    ignore_value,
    record_key,
    record_settings,
    store_file,
    store_flag,
)
from kbackup.config import KEYS


def _hidden_option(*names: str, callback: Callable[..., None], **attributes: Any) -> Callable[[F], F]:
    """An option whose value goes to `State` and not to the command."""
    return click.option(*names, expose_value=False, callback=callback, **attributes)


common_options = options(
    _hidden_option(
        "--config",
        callback=store_file("config"),
        type=click.Path(),
        metavar="FILE",
        help="Configuration file. [default ./kbackup.toml]",
    ),
    _hidden_option(
        "--set",
        "set_",
        callback=record_settings,
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Set any key. [repeatable]",
    ),
    _hidden_option(
        "--json",
        callback=store_flag("json"),
        is_flag=True,
        help="Print one JSON document on stdout; --json=line prints it on one line.",
    ),
    _hidden_option(
        "-q", "--quiet", callback=store_flag("quiet"), is_flag=True, help="Print no notes and no progress."
    ),
    _hidden_option(
        "-v",
        "--verbose",
        callback=store_flag("verbose"),
        count=True,
        help="Log more; give it twice for still more.",
    ),
    _hidden_option(
        "--debug", callback=store_flag("debug"), is_flag=True, help="Show tracebacks and log everything."
    ),
    _hidden_option(
        OPTION,
        callback=ignore_value,
        type=click.Path(),
        metavar="FILE",
        help="Write metrics for node_exporter's textfile collector, also after an error.",
    ),
)
archive_option = options(
    key_option("archive", "-a", "--archive"),
    _hidden_option(
        "--accept-rollback",
        callback=store_flag("accept_rollback"),
        is_flag=True,
        help="Accept an archive whose newest catalogs are missing.",
    ),
)
archive_argument = click.argument(
    "place", metavar="[ARCHIVE]", required=False, expose_value=False, callback=record_key(KEYS["archive"])
)
source_options = cluster_options("source")
target_options = cluster_options("target")
s3_options = options(
    key_option("s3.endpoint_url", "--s3-endpoint-url"),
    key_option("s3.region", "--s3-region"),
    key_option("s3.profile", "--s3-profile"),
    key_option("s3.path_style", "--s3-path-style/--no-s3-path-style"),
    key_option("encryption.key", "--encryption-key"),
)
spark_options = key_option("spark.master")
cache_option = key_option(
    "metadata_cache", "--cache/--no-cache", help="Keep the archive's metadata for the next command."
)
state_options = options(
    common_options,
    archive_option,
    point_option(default="latest"),
    to_time_option(),
    cache_option,
)
"""Select the state of an archive to read."""
