"""Repairing an archive: a base state, restore points and segments that no catalog lists, and documents made anew.

`base` finds the newest state that catalogs tell, `scan` reads segments back, `inventory` adds what no catalog lists,
`attribution` tells which restore point added a segment, `lost_segments` what is missing, `mend` makes lost documents
of restore points anew, `point` makes new restore points of segments.
"""
