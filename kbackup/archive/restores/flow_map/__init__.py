"""The offset map of a flow: mirrors/<source>/<target>/map/ (`formats/mirrors.md`)."""

from kbackup.archive.restores.flow_map.reader import FlowMap, open_map
from kbackup.archive.restores.flow_map.tables import SCHEMA

__all__ = ["SCHEMA", "FlowMap", "open_map"]
