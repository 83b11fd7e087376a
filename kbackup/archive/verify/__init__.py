"""Verifying an archive: everything that is wrong is found and named; nothing stops at the first.

`catalog` reads the catalogs, their tables and the documents of restore points, `vectors` holds the segments against
the manifests, `objects` the listing against the tables, `derived` the files that follow from both, `segment` the
bytes of one segment. `java` does the same for a folder of the Java tool.
"""
