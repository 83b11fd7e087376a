"""`kbackup config`: show the configuration in effect, and the reference of its keys."""

from __future__ import annotations

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.notify import RequestBody
from kbackup.cli.common.options import common_options, key_option, s3_options, spark_options
from kbackup.config import KEYS, VARIABLES, settings_in_effect, show_value, shown


@click.command("config")
@click.option("--show", "output", flag_value="show", default="show", help="Show all values and where each came from.")
@click.option("--keys", "output", flag_value="keys", help="Show all keys with type, default and meaning.")
@common_options
@key_option("archive", "-a", "--archive")
@s3_options
@spark_options
@pass_frame
def command(frame: Frame, output: str) -> None:
    """Show the configuration and where each value came from; secrets are hidden."""
    if output == "keys":
        _keys(frame)
    else:
        _show(frame)


def _show(frame: Frame) -> None:
    RequestBody(frame.config.notify.body)  # raises for a template that makes no JSON
    settings = [(setting, shown(setting.path, setting.value)) for setting in settings_in_effect(frame.loaded)]
    frame.reporter.table(
        ("key", "value", "from"),
        [(setting.path, _text(setting.path, value), str(setting.origin)) for setting, value in settings],
    )
    for note in frame.loaded.notes:
        frame.reporter.note(note)
    frame.reporter.document(
        {
            "settings": [
                {"key": setting.path, "value": value, "origin": setting.origin._asdict()} for setting, value in settings
            ],
            "notes": frame.loaded.notes,
        }
    )


def _text(path: str, value: object) -> str:
    key = KEYS.get(path)
    return show_value(key, value) if key else str(value)


def _keys(frame: Frame) -> None:
    keys = KEYS.values()
    frame.reporter.table(
        ("key", "takes", "default", "meaning"), [(key.path, key.expected, key.default_text, key.doc) for key in keys]
    )
    frame.reporter.line()
    frame.reporter.table(("variable", "meaning"), list(VARIABLES.items()))
    frame.reporter.document(
        {
            "keys": [
                {"key": key.path, "takes": key.expected, "default": key.default, "meaning": key.doc} for key in keys
            ],
            "variables": VARIABLES,
        }
    )
