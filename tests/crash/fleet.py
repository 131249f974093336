"""A fleet process for the crash tests: `python -m tests.crash.fleet FOLDER PROCESSES [NAME=VALUE...]`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.crash.program import Log

from selaras._worker.fleet import Fleet
from selaras._worker.system import system_clock, system_entropy

if __name__ == "__main__":
    folder, processes, *options = sys.argv[1:]
    command = [sys.executable, "-m", "tests.crash.program", folder, *options]
    raise SystemExit(Fleet(command, int(processes), system_clock(), system_entropy(), Log(Path(folder))).run())
