"""Spark's Python daemon (`spark.python.daemon.module`) with the product wrapped: its workers are forked from
it."""

from __future__ import annotations

import runpy

from kbackup.spark.daemon import silence_hangup_tracebacks
from tests.faults.dying import arm

if __name__ == "__main__":
    arm()
    silence_hangup_tracebacks()
    runpy.run_module("pyspark.daemon", run_name="__main__")
