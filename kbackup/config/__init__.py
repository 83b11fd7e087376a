"""The configuration: frozen models, read from file, environment and flags; secrets are never shown."""

from kbackup.config.keys import KEYS, Key, show_value
from kbackup.config.load import VARIABLES, Files, Loaded, Origin, Setting, load, settings_in_effect
from kbackup.config.models import Backup, Config, Restore, Spark
from kbackup.config.secrets import HIDDEN, is_secret, redact, shown
from kbackup.config.values import parse_duration, parse_rule, parse_size

__all__ = [
    "HIDDEN",
    "KEYS",
    "VARIABLES",
    "Backup",
    "Config",
    "Files",
    "Key",
    "Loaded",
    "Origin",
    "Restore",
    "Setting",
    "Spark",
    "is_secret",
    "load",
    "parse_duration",
    "parse_rule",
    "parse_size",
    "redact",
    "settings_in_effect",
    "show_value",
    "shown",
]
