"""Mending an archive: what is left of its catalogue, which segments are whole, and a restore point of what was found.

`left` reads what can be read, `scan` reads segments back, `choose` decides what a new restore point stands on, `point`
makes it, `beside` its groups and settings. Nothing here writes but `scan`, which replaces damaged indexes.
"""
