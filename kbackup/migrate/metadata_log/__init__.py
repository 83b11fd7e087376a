"""A KRaft controller's metadata log: its record batches, its records, and the cluster metadata they add up to.

Byte formats: formats/metadata-log.md. `log` reads files and folders, `image` replays records, gives the metadata its
common form, and writes the file that a new cluster starts from.
"""
