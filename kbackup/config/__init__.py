"""The configuration: frozen models, read from file, environment and flags; secrets are never shown."""

from kbackup.config.keys import KEYS, Key, show_value
from kbackup.config.load import VARIABLES, ConfigFiles, Loaded, Setting, SettingOrigin, load, settings_in_effect
from kbackup.config.models import Config
from kbackup.config.secrets import exposes_secret, shown
from kbackup.errors import HIDDEN

__all__ = [
    "HIDDEN",
    "KEYS",
    "VARIABLES",
    "Config",
    "ConfigFiles",
    "Key",
    "Loaded",
    "Setting",
    "SettingOrigin",
    "exposes_secret",
    "load",
    "settings_in_effect",
    "show_value",
    "shown",
]
