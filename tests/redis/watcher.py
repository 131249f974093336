"""Outlives the tests by a moment: ends the servers they started and removes their folder, also when pytest was killed.

`python watcher.py FOLDER`, told on its standard input `+PID` of what was started and `-PID` of what has ended. The
pipe's end is the tests' end, however that came. (PR_SET_PDEATHSIG would end a server with the *thread* that started
it, and exists on Linux only.)
"""

from __future__ import annotations

import os
import shutil
import signal
import sys


def main() -> None:
    running: set[int] = set()
    for line in sys.stdin:
        (running.add if line[0] == "+" else running.discard)(int(line[1:]))
    for pid in running:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
