"""Stacks of a flame graph, from what the samplers print."""

from __future__ import annotations

from scripts.bench.flames import jvm_stacks, python_stacks

_PYTHON = """\
process 7:"python -m kbackup backup";<module> (kbackup/__main__.py:48);main (kbackup/__main__.py:23) 3
process 7:"python -m kbackup";process 9:"python -m kbackup.spark.daemon --ready 5";<module> (a.py:1);\
_find_and_load (<frozen importlib._bootstrap>:1176);<module> (b.py:2) 2
"""


def test_python_stacks_begin_with_the_kind_of_process() -> None:
    assert list(python_stacks(_PYTHON.splitlines())) == [
        ("driver, Python;<module> (kbackup/__main__.py:48);main (kbackup/__main__.py:23)", 3),
        ("daemon and workers, Python;<module> (a.py:1);<module> (b.py:2)", 2),
    ]


def test_jvm_stacks_begin_with_jvm() -> None:
    assert list(jvm_stacks(["java/lang/Thread.run;a b.c 12"])) == [("JVM;java/lang/Thread.run;a b.c", 12)]
