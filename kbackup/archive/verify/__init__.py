"""Verifying an archive: everything that is wrong is found and named; nothing stops at the first.

`catalog` reads the catalogs, their tables and the documents of restore points, and holds segments, the listing and the
files that follow against them; `findings` checks the bytes of one segment. `java` does the same for a folder of the
Java tool.
"""
