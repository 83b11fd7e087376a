"""MirrorMaker 2's properties file: from its text to the flows of a mirror."""

from kbackup.jobs.mirror.properties.load import MirrorProperties, load_flows

__all__ = ["MirrorProperties", "load_flows"]
