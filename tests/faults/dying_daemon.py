"""Spark's Python daemon (`spark.python.daemon.module`) with the product wrapped: its workers are forked from
it."""

from __future__ import annotations

import runpy

from tests.faults.dying import arm

if __name__ == "__main__":
    arm()
    runpy.run_module("pyspark.daemon", run_name="__main__")
