"""Prints the file to give to `spark-submit`."""

from pathlib import Path

print(Path(__file__).with_name("kbackup_main.py"))
