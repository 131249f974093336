"""`selaras queues`."""

from __future__ import annotations

from tests.edges.shell import Line, Shell, everywhere


@everywhere
def test_queues_are_summed_over_partitions_and_one_without_a_worker_is_told(shell: Shell, line: Line) -> None:
    shell.enqueue(*(f"slow.call({n})" for n in range(5)), "send_mail.call(1, 'x')", "slow.options(delay=60).call(1)")

    queues = {queue["queue"]: queue for queue in line.json("queues")}
    text = line("queues")

    assert queues["default"]["counts"]["ready"] == 5
    assert queues["default"]["counts"]["scheduled"] == 1
    assert queues["mail"]["counts"]["ready"] == 1
    assert queues["mail"]["workers"] == 0
    assert "default: 6 unfinished jobs and no worker; start one: selaras worker shop:app -q default" in text.stderr


def test_jobs_that_no_worker_could_run_are_no_reason_to_start_one(shell: Shell, line: Line) -> None:
    module = "from selaras import Selaras\n\napp = Selaras()\n\n\n@app.task\nasync def note({}: int) -> None: ...\n"
    shell.write("notes.py", module.format("n"))
    shell.enqueue("note.call(1)", "note.call(2)", module="notes")
    shell.write("notes.py", module.format("number_of_it"))
    shell.work(module="notes")

    said = line("queues", "--app", "notes:app").stderr

    assert "default: 2 unfinished jobs that no worker could run: " in said
    assert "a value for n, which it does not have" in said
    assert "start one" not in said


@everywhere
def test_a_paused_queue_is_not_worked_on_until_it_is_resumed(shell: Shell, line: Line) -> None:
    shell.enqueue("slow.options(id='a').call(0)")

    assert line("queues", "pause", "default").stdout == "default: paused\n"
    assert line("queues", "pause", "default").stdout == "default: was paused already\n"
    shell.work()
    assert line.json("jobs", "show", "a")["state"] == "ready"
    assert line.json("queues")[0]["paused"] is True

    assert line("queues", "resume", "default").stdout == "default: resumed\n"
    assert line("queues", "resume", "default").stdout == "default: was not paused\n"
    shell.work()
    assert line.json("jobs", "show", "a")["state"] == "succeeded"


def test_pausing_a_queue_that_nobody_knows_is_done_and_doubted(shell: Shell, line: Line) -> None:
    shell.enqueue()

    result = line("queues", "pause", "mial")

    assert result.exit_code == 0
    assert "is the name right?" in result.stderr


def test_resuming_a_queue_that_nobody_knows_is_told_with_the_nearest(shell: Shell, line: Line) -> None:
    shell.enqueue("odd.call(1)")

    result = line("queues", "resume", "defaultt", "default")

    assert result.exit_code == 1
    assert "defaultt: no such queue; did you mean 'default'?" in result.stderr
    assert "default: was not paused" in result.stdout
