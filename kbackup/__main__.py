"""`python -m kbackup`, and what `spark-submit` is given."""

import sys

from kbackup.cli import main

sys.exit(main())
