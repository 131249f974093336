"""`python -m selaras.demo` is `selaras demo`."""

from __future__ import annotations

from selaras.demo.command import demo

demo(prog_name="selaras demo")
