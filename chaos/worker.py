"""A worker of the chaos program: `python -m chaos.worker`. Its turns and beats are noted on their way to the store."""

from __future__ import annotations

import sys
from typing import Any

from chaos.history import Claimed, Opened, Settled, now
from chaos.program import notes
from selaras._app.work.working import AppWorker
from selaras._contracts.partition import HeartbeatReply, HeartbeatRequest, TurnReply, TurnRequest
from selaras._contracts.store import Pulse, Store
from selaras._core.jobs.job import Settled as Answer, Settlement
from selaras._worker.fleet import follow_fleet
from selaras._worker.loops import run
from selaras.cli.logs import show_log
from selaras.cli.reports import Reporter
from selaras.demo.airline import app


class Watch:
    """Stands between a worker and its store."""

    def __init__(self) -> None:
        self._first_ns: dict[
            tuple[int, str, int], int
        ] = {}  # when a turn was first sent: a repeat may be answered for it
        self._settles_ns: dict[int, int] = {}  # by fence: when its end was first sent

    def over(self, store: Store) -> None:
        """Note all that this store answers from now on."""
        for partition in store.partitions:
            setattr(partition, "turn", self._turn(partition.index, partition.turn))  # noqa: B010 - a method of one object
        make = store.pulse
        setattr(store, "pulse", lambda: _Pulse(self, make()))  # noqa: B010 - the same

    def _turn(self, index: int, turn: Any) -> Any:
        async def noted(request: TurnRequest) -> TurnReply:
            sent = self._first_ns.setdefault((index, request.instance, request.number), now())
            self.sends(request.settlements)
            reply: TurnReply = await turn(request)
            got = now()
            self.answered(request.settlements, reply.settled, got)
            for claim in reply.claims:
                writes = (*claim.writes, *claim.elsewhere)
                notes.add(Claimed(job=claim.job, fence=claim.fence, writes=writes, sent=sent, got=got))
            return reply

        return noted

    def sends(self, settlements: tuple[Settlement, ...]) -> None:
        """Remember when these were first sent."""
        for settlement in settlements:
            self._settles_ns.setdefault(settlement.fence, now())

    def answered(self, settlements: tuple[Settlement, ...], answers: tuple[Answer, ...], got: int) -> None:
        """Note what became of them."""
        for one, answer in zip(settlements, answers, strict=False):
            notes.add(
                Settled(
                    job=one.job,
                    fence=one.fence,
                    event=one.event.value,
                    refused=answer.refusal is not None,
                    sent=self._settles_ns[one.fence],
                    got=got,
                )
            )


class _Pulse:
    """The same for what heartbeats settle."""

    def __init__(self, watch: Watch, pulse: Pulse) -> None:
        self._watch = watch
        self._pulse = pulse

    def beat(self, partition: int, request: HeartbeatRequest) -> HeartbeatReply:
        self._watch.sends(request.settlements)
        reply = self._pulse.beat(partition, request)
        self._watch.answered(request.settlements, reply.settled, now())
        return reply

    def close(self) -> None:
        self._pulse.close()


async def work(worker: AppWorker) -> int:
    """Work until told to stop."""
    process = app.process()
    Watch().over(process.store)
    await process.open()
    notes.add(Opened(at=now()))
    return int(await worker.run())


def main() -> int:
    """Be a worker. Returns its exit code."""
    show_log("info", as_json=False, one_of_many=True)
    worker = app.worker(name=notes.name, owns_process=True, observer=Reporter(every_job=False))
    follow_fleet(lambda _: worker.stop())
    return run(work(worker))


if __name__ == "__main__":
    sys.exit(main())
