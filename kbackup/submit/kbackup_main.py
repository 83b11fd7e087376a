"""Entry point of `spark-submit`: the command line."""

import sys

from kbackup.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
