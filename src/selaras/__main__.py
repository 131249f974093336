"""`python -m selaras` is `selaras`."""

from __future__ import annotations

from selaras.cli.main import main

main()
