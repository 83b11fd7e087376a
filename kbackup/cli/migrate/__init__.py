"""`kbackup migrate`: around a cluster's way from ZooKeeper to KRaft. Each subcommand is a module here."""

from kbackup.cli.migrate.group import command

__all__ = ["command"]
