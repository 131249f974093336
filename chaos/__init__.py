"""Real processes on real stores, to which real things happen; what they did is held against the promises afterwards.

Read in this order: `program` (what workers and clients do, and note), `ledger` (their datastore, which numbers its
versions), `history` (what is noted), `judge` (what a history must be like). `grounds` are the stores and what can go
wrong with each; `run` lets it go wrong, and `page` tells what came of it.
"""

from __future__ import annotations

import os
import select
import time

if "FAKETIME_TIMESTAMP_FILE" in os.environ:
    # Under libfaketime the call behind `time.sleep` fails (EINVAL), from Python 3.11 on; waiting for nothing does not.
    def _sleep(seconds: float) -> None:
        select.select([], [], [], seconds)

    time.sleep = _sleep  # type: ignore[assignment] # it takes what has a __float__, too
