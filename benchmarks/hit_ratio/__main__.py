"""Reads every trace, or those named, through every policy, and prints the share of hits as a Markdown table."""

from __future__ import annotations

import sys
from random import Random

from benchmarks.hit_ratio.policies import POLICIES
from benchmarks.hit_ratio.traces import TRACES

SHARES = (0.01, 0.1, 0.3)


def main() -> None:
    """See above."""
    names = [name for name in POLICIES if _is_there(name)]
    print("| trace | keys | size |", " | ".join(names), "|")
    print("| --- | --- | --- |", " | ".join("---" for _ in names), "|")
    for title in sys.argv[1:] or TRACES:
        trace = list(TRACES[title](Random(title)))
        keys = len(set(trace))
        for share in SHARES:
            size = max(10, round(keys * share))
            ratios = [_ratio(name, size, trace) for name in names]
            best = max(ratios)
            shown = [f"**{ratio:.1%}**" if ratio == best else f"{ratio:.1%}" for ratio in ratios]
            print(f"| {title} | {keys:,} | {size:,} |", " | ".join(shown), "|", flush=True)


def _ratio(name: str, size: int, trace: list[str]) -> float:
    read = POLICIES[name](size).read
    return sum(map(read, trace)) / len(trace)


def _is_there(name: str) -> bool:
    try:
        POLICIES[name](10)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
