"""`python -m tailwatch_stack` is the command `tailwatch`."""

import sys

from tailwatch_stack.cli import main

sys.exit(main())
