"""MirrorMaker 2's properties file: its sections, its keys with their defaults, and the flows of a mirror."""
