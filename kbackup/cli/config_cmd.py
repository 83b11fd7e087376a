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
    reporter = frame.reporter
    if output == "keys":
        keys = KEYS.values()
        reporter.table(
            ("key", "takes", "default", "meaning"), [(k.path, k.expected, k.default_text, k.doc) for k in keys]
        )
        reporter.line()
        reporter.table(("variable", "meaning"), list(VARIABLES.items()))
        described = [{"key": k.path, "takes": k.expected, "default": k.default, "meaning": k.doc} for k in keys]
        reporter.document({"keys": described, "variables": VARIABLES})
        return
    RequestBody(frame.config.notify.body)  # raises for a template that makes no JSON
    settings = [(setting, shown(setting.path, setting.value)) for setting in settings_in_effect(frame.loaded)]
    reporter.table(
        ("key", "value", "from"),
        [(setting.path, _text(setting.path, value), str(setting.origin)) for setting, value in settings],
    )
    for note in frame.loaded.notes:
        reporter.note(note)
    documents = [{"key": s.path, "value": value, "origin": s.origin._asdict()} for s, value in settings]
    reporter.document({"settings": documents, "notes": frame.loaded.notes})


def _text(path: str, value: object) -> str:
    key = KEYS.get(path)
    return show_value(key, value) if key else str(value)
