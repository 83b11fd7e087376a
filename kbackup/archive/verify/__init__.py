"""Verifying an archive: everything that is wrong is found and named; nothing stops at the first.

`points` reads the manifests and the files beside them, `vectors` holds the segment tables against the
manifests, `objects` the listing against the tables, `derived` the files that follow from both, `segment` the
bytes of one segment. `java` does the same for a folder of the Java tool.
"""
