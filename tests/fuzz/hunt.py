"""Coverage-guided fuzzing of one target: `python -m tests.fuzz.hunt "server's url" -max_total_time=60`.

Needs `pip install atheris`, which has no wheel for every Python; the options are libFuzzer's. Its corpus begins with the
target's seeds. What it finds becomes a seed or a test here.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["selaras"]):  # of everything else it would take a minute
        targets = importlib.import_module("tests.fuzz.targets")
    every = {**targets.BYTES, **targets.TEXTS}
    if len(sys.argv) < 2 or sys.argv[1] not in every:
        raise SystemExit(f"{__doc__}\nTargets: {', '.join(every)}")
    name = sys.argv.pop(1)
    target = every[name]
    corpus = Path(tempfile.mkdtemp(prefix="selaras-fuzz-"))
    for number, seed in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(seed if isinstance(seed, bytes) else seed.encode())
    atheris.Setup(
        [sys.argv[0], *sys.argv[1:], str(corpus)],
        lambda data: targets.fuzzed(target, data if name in targets.BYTES else targets.text_of(data)),
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
