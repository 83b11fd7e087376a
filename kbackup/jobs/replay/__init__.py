"""Produce archived partitions to a target, each record exactly once: what restores and mirrors share."""
