"""`python -m selaras.demo` is `selaras demo`."""

from __future__ import annotations

import sys

from selaras.cli.main import cli

cli(["demo", *sys.argv[1:]], prog_name="selaras")
