"""What `spark-submit` runs: the command line."""

import sys

from kbackup.cli import main

if __name__ == "__main__":
    sys.exit(main())
