"""`python -m selaras.demo` is `selaras demo`."""

from __future__ import annotations

from selaras.cli.main import main

main("demo")
