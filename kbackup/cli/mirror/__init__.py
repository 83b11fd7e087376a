"""`kbackup mirror`: MirrorMaker 2 by way of an archive. Each subcommand is a module here."""

from kbackup.cli.mirror.group import command

__all__ = ["command"]
