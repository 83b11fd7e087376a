"""`kbackup mirror`: mirror clusters through an archive. Each subcommand is a module here."""

from kbackup.cli.mirror.group import command

__all__ = ["command"]
