"""What `spark-submit` runs: the command line."""

import sys

from kbackup.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
