"""`python -m kbackup`."""

import sys

from kbackup.cli import main

sys.exit(main())
