"""``python -m ratioscope``: the command line."""

from __future__ import annotations

import sys

from ratioscope.cli.main import main

sys.exit(main())
