"""One page: what was done, what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from chaos.run import Outcome

_SHOWN = 10


def page(outcome: Outcome) -> str:
    """Tell a run's outcome."""
    plan, verdict = outcome.plan, outcome.verdict
    lines = [
        "",
        f"chaos on {plan.ground}, {plan.seconds:g} s, seed {plan.seed}{', with faults that lose' * plan.lossy}{', with a host tier' * plan.host}",
        "",
        f"  faults injected    {sum(outcome.faults.values()):,}: {_counted(outcome.faults)}",
        f"  processes          {outcome.processes:,} in all",
        f"  jobs accepted      {verdict.accepted:,}",
        f"    settled          {verdict.settled:,}",
        f"    lost             {verdict.lost:,}",
        f"    handed out twice {verdict.twice:,}",
        f"  attempts           {verdict.attempts:,}, of which {verdict.refused:,} were refused at their end",
        f"  flights            {outcome.flights:,}, every plane compared with one plain pass",
        f"  reads checked      {verdict.reads:,}: {_counted(verdict.tiers)}",
        f"    stale            {verdict.stale:,}",
        f"  longest recovery   {outcome.recovery_s:.1f} s from the end of a fault to the next end of a job",
        f"  drained            {outcome.drained_s:.1f} s after the last fault",
    ]
    lines += [f"  left out           {what}" for what in outcome.left_out]
    if plan.lossy:
        lines = [line for line in lines if "flights" not in line]
    if outcome.all_right:
        lines += ["", "no promise was broken"]
    else:
        kinds = Counter(violation.promise for violation in verdict.violations)
        lines += ["", f"BROKEN  {_counted(kinds)}" if kinds else "BROKEN"]
        lines += [f"  {v.promise:12} {v.what}" for v in verdict.violations[:_SHOWN]]
        lines += [f"  trouble      {what}" for what in outcome.troubles[:_SHOWN]]
        lines += ["", f"again:      {plan.command}", f"histories:  {outcome.folder}"]
    return "\n".join(lines)


def _counted(kinds: Counter[str] | dict[str, int]) -> str:
    pairs: Iterable[tuple[str, int]] = sorted(kinds.items())
    return ", ".join(f"{kind} {number:,}" for kind, number in pairs) or "none"
