"""`python -m scripts.soak.mutation [--cases N] [--seed S]`: exit code 1 where any case came out wrong."""

from __future__ import annotations

import argparse
import sys
import time

from scripts.soak.mutation.cases import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.mutation")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    result = run(arguments.cases, arguments.seed)
    print("\n".join(result.lines()))
    sys.exit(1 if result.wrong else 0)
