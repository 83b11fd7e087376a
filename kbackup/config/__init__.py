"""The configuration: frozen models, read from file, environment and flags; secrets are never shown."""

from kbackup.config.keys import KEYS, Key, show_value
from kbackup.config.load import VARIABLES, ConfigFiles, Loaded, Setting, SettingOrigin, load, settings_in_effect
from kbackup.config.models import Backup, Config, Restore, Spark
from kbackup.config.secrets import HIDDEN, exposes_secret, is_secret, redact, shown
from kbackup.config.values import parse_rule
from kbackup.config.windows import Range, parse_duration, parse_range, parse_size, parse_time

__all__ = [
    "HIDDEN",
    "KEYS",
    "VARIABLES",
    "Backup",
    "Config",
    "ConfigFiles",
    "Key",
    "Loaded",
    "Range",
    "Restore",
    "Setting",
    "SettingOrigin",
    "Spark",
    "exposes_secret",
    "is_secret",
    "load",
    "parse_duration",
    "parse_range",
    "parse_rule",
    "parse_size",
    "parse_time",
    "redact",
    "settings_in_effect",
    "show_value",
    "shown",
]
