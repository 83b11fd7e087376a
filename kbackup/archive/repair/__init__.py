"""Repairing an archive: a base state, restore points and segments that no catalog lists, and documents made anew.

`base` finds the newest state that catalogs tell, `scan` reads segments back, `attribution` tells which restore point
added a segment and what is missing, `mend` makes lost documents of restore points anew, `points` adds what no catalog
lists and makes new restore points of segments.
"""
