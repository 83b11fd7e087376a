"""Repairing an archive: a base state, restore points and segments that no catalog lists, and documents made anew.

`base` finds the newest state in the catalogs, `segments` reads segments back and finds the restore point that added
each, and what is missing; `points` adds what no catalog lists, and new restore points of segments; `manifests`
makes lost documents of restore points anew.
"""
