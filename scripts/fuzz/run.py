"""The process that fuzzes: `python -m scripts.fuzz.run TARGET CORPUS [options of libFuzzer]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["kbackup.formats", "kbackup.archive", "kbackup.kafka.metadata_log"]):
    from scripts.fuzz.targets import one

if __name__ == "__main__":
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, lambda data: one(name, data))
    atheris.Fuzz()
