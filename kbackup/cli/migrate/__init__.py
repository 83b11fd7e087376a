"""`kbackup migrate`: check, watch and archive a migration from ZooKeeper to KRaft. Each subcommand is a module here."""

from kbackup.cli.migrate.group import command

__all__ = ["command"]
