"""Build the sdist and the wheel, and install them with all extras for each Python that kbackup supports.

    python -m scripts.dev.wheels

The versions are those of requirements/dev.txt. The packages come from uv's cache, as hard links where it is on the same
disk. A Python that is not on this machine is named, and is no error.
"""
