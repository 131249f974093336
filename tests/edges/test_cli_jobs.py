"""`selaras jobs`."""

from __future__ import annotations

import pytest
from tests.edges.shell import Line, Shell, everywhere, strict

from selaras._core.jobs.failure import MESSAGE_MOST


def ids_of(line: Line, *args: str) -> list[str]:
    return list(line("jobs", "list", "--ids", *args).stdout.split("\n")[:-1])


@everywhere
def test_jobs_are_listed_newest_first_a_line_each_with_a_header_for_a_pipe(shell: Shell, line: Line) -> None:
    shell.enqueue(
        "reprice.call(42, 1.1)", "send_mail.options(id='m-1').call(7, 'hunter2')", "slow.options(delay=60).call(1)"
    )

    head, *rows = [row.split("\t") for row in line("jobs").stdout.splitlines()]

    assert head == ["ID", "STATE", "TASK", "QUEUE", "AGE", "ATTEMPT", "NOTE"]
    assert [(row[1], row[2], row[3]) for row in rows] == [
        ("scheduled", "slow", "default"),
        ("ready", "send_mail", "mail"),
        ("ready", "reprice", "default"),
    ]
    assert rows[1][0] == "m-1"


@everywhere
def test_a_list_can_be_narrowed(shell: Shell, line: Line) -> None:
    shell.enqueue("reprice.options(id='r').call(42, 1.1)", "send_mail.options(id='m').call(7, 'x')")

    assert ids_of(line, "--queue", "mail") == ["m"]
    assert ids_of(line, "--task", "reprice") == ["r"]
    assert ids_of(line, "--state", "ready", "--state", "failed") == ["m", "r"]
    assert ids_of(line, "--state", "failed") == []
    short = line("jobs", "list", "--limit", "1", "--ids")
    assert short.stdout == "m\n"
    assert "the newest 1 are shown" in short.stderr


@everywhere
def test_json_is_strict_and_says_the_same_with_and_without_the_apps_code(shell: Shell, line: Line) -> None:
    shell.enqueue("odd.call(float('-inf'))", "odd.call({'a': [], 'b': {}})", "send_mail.call(7, 'hunter2')")
    store = shell.env.get("SELARAS_URL", "sqlite:///selaras.db")

    with_code = line.json("jobs", "list")
    without = line.json("jobs", "list", "--url", store, SELARAS_APP="")

    assert with_code == without
    assert [job["arguments"] for job in with_code] == [
        {"customer": 7, "token": "•••"},
        {"value": {"a": [], "b": {}}},
        {"value": "-Infinity"},
    ]


@everywhere
def test_results_with_nan_are_strict_json(shell: Shell, line: Line) -> None:
    shell.enqueue("odd.options(id='o').call(None)")
    shell.work()

    job = line.json("jobs", "show", "o")

    assert job["state"] == "succeeded"
    assert job["result"] == {"loss": "NaN", "most": "Infinity", "given": None}


@everywhere
def test_show_tells_why_a_job_failed_with_its_history_and_traceback(shell: Shell, line: Line) -> None:
    shell.enqueue("reprice.options(id='r').call(42, -1)")
    shell.work()

    text = line("jobs", "show", "r").stdout

    assert "state       failed" in text
    assert "error       ValueError: no price is below 0" in text
    assert "reason" not in text  # the same words twice
    assert "Z\n" in text  # instants say that they are in UTC
    assert "argument    factor = -1.0" in text
    assert 'raise ValueError("no price is below 0")' in text
    assert "fail: ValueError" in text
    job = line.json("jobs", "show", "r")
    assert job["error"]["type"] == "ValueError"
    assert "shop.py" in job["error"]["traceback"]


@pytest.mark.parametrize(
    "command", [("jobs", "list", "--json"), ("jobs", "show", "m", "--json"), ("jobs", "show", "m"), ("jobs",)]
)
def test_secrets_are_never_shown(shell: Shell, line: Line, command: tuple[str, ...]) -> None:
    shell.enqueue("send_mail.options(id='m').call(7, 'hunter2')")

    assert "hunter2" not in line(*command).output
    assert "hunter2" not in line(*command, "--url", "sqlite:///selaras.db", SELARAS_APP="").output


def test_show_says_what_a_job_waits_for(shell: Shell, line: Line) -> None:
    shell.enqueue(
        "reprice.options(id='first').call(42, -1)",
        "reprice.options(id='second').call(42, 2)",
        "slow.options(id='later', delay=3600).call(1)",
        "slow.options(id='child', after='first').call(1)",
    )

    def waits(id: str) -> list[str]:
        found: list[str] = line.json("jobs", "show", id)["waits_for"]
        return found

    assert waits("first") == ["a worker: none serves queue 'default'; start one: selaras worker shop:app -q default"]
    assert waits("second") == ["its turn in line product:42, held by job first (reprice)"]
    assert waits("later")[0].startswith("its time, in 59m")
    assert waits("child") == ["job first (after): ready"]

    shell.work()
    assert waits("child") == ["job first (after): failed; retry it, or cancel this one"]
    assert waits("second") == []


@everywhere
def test_failed_jobs_are_retried_by_id_or_all_of_them(shell: Shell, line: Line) -> None:
    shell.enqueue(
        "reprice.options(id='a').call(1, -1)", "reprice.options(id='b').call(2, -1)", "slow.options(id='c').call(0)"
    )
    shell.work()

    one = line("jobs", "retry", "a")
    assert (one.exit_code, one.stdout) == (0, "a: retried, now ready\n")
    rest = line("jobs", "retry", "--failed")
    assert (rest.exit_code, rest.stdout) == (0, "b: retried, now ready\n")
    none = line("jobs", "retry", "--failed")
    assert (none.exit_code, none.stdout) == (0, "no failed jobs\n")
    no = line("jobs", "retry", "c", "nobody")
    assert (no.exit_code, no.stdout) == (1, "c: not retried: it is succeeded, not failed\nnobody: no such job\n")


def test_retry_needs_to_know_which(line: Line, shell: Shell) -> None:
    shell.enqueue()
    assert line("jobs", "retry").exit_code == 2
    both = line("jobs", "retry", "a", "--failed")
    assert both.exit_code == 2
    assert "ids were given, too" in both.stderr
    assert line("jobs", "retry", "a", "--queue", "mail").exit_code == 2


@everywhere
def test_cancel_answers_differ_for_waiting_ended_and_unknown_jobs(shell: Shell, line: Line) -> None:
    shell.enqueue("slow.options(id='a').call(1)")

    assert line("jobs", "cancel", "a").stdout == "a: cancelled\n"
    again = line("jobs", "cancel", "a", "nobody")
    assert again.exit_code == 1
    assert again.stdout == "a: not cancelled: it is cancelled\nnobody: no such job\n"
    assert line.json("jobs", "show", "a")["reason"] == "cancelled by hand"


def test_a_reason_by_hand_is_cut_like_any_other(shell: Shell, line: Line) -> None:
    shell.enqueue("slow.options(id='a').call(1)")
    line("jobs", "cancel", "a", "--reason", "x" * 100_000)
    assert len(line.json("jobs", "show", "a")["reason"]) <= MESSAGE_MOST


@everywhere
def test_purge_asks_or_is_told_and_deletes_for_good(shell: Shell, line: Line) -> None:
    shell.enqueue(
        "slow.options(id='a').call(0)",
        "send_mail.options(id='b').call(1, 'x')",
        "slow.options(id='c', delay=60).call(0)",
    )
    shell.work()

    unasked = line("jobs", "purge", "--state", "succeeded")
    assert unasked.exit_code == 2
    assert "--yes" in unasked.stderr
    assert line("jobs", "purge", "--state", "succeeded", "--queue", "mail", "--yes").stdout == "1 job deleted\n"
    assert line.json("jobs", "purge", "--state", "succeeded", "--state", "scheduled", "--yes") == {"purged": 2}
    assert ids_of(line) == []


def test_nobody_is_asked_to_delete_nothing(shell: Shell, line: Line) -> None:
    shell.enqueue("reprice.call(42, 1)")

    done = line("jobs", "purge", "--state", "failed")

    assert (done.exit_code, done.stdout) == (0, "0 jobs deleted\n")


def test_running_jobs_cannot_be_purged(line: Line) -> None:
    assert line("jobs", "purge", "--state", "running", "--yes").exit_code == 2


@pytest.mark.parametrize(
    "id", ["123", "a:b:c", " ", "é", "{x}", "../x", "lock", "delayed", "--json", "[red]x[/]", "%41", "📦", "x" * 200]
)
def test_any_id_can_be_shown_and_cancelled_and_addresses_no_other_job(shell: Shell, line: Line, id: str) -> None:
    shell.enqueue(f"slow.options(id={id!r}).call(1)", "slow.options(id='other').call(1)")

    assert strict(line("jobs", "show", "--json", "--", id).stdout)["id"] == id
    assert line("jobs", "list").stdout.splitlines()[2].split("\t")[0] == id
    assert line("jobs", "cancel", "--", id).exit_code == 0
    assert line.json("jobs", "show", "other")["state"] == "ready"


@pytest.mark.parametrize("id", ["a\nb", "\x1b[31m", "x" * 300])
def test_an_id_that_no_job_can_have_is_just_unknown(shell: Shell, line: Line, id: str) -> None:
    shell.enqueue()

    result = line("jobs", "show", id)

    assert result.exit_code == 1
    assert "\x1b" not in result.output


@pytest.mark.parametrize("queue", ["a:b", "{q}", "é", "1", "a b"])
def test_any_queue_name_can_be_listed_and_paused(shell: Shell, line: Line, queue: str) -> None:
    shell.enqueue(f"slow.options(id='x', queue={queue!r}).call(1)")

    assert ids_of(line, "--queue", queue) == ["x"]
    assert line("queues", "pause", queue).exit_code == 0
    assert [one["paused"] for one in line.json("queues") if one["queue"] == queue] == [True]


def test_text_of_errors_cannot_forge_lines_or_colours(shell: Shell, line: Line) -> None:
    shell.write(
        "bad.py",
        """
        from selaras import Selaras

        app = Selaras()

        @app.task(retries=0)
        async def bad():
            raise ValueError("\\x1b[31mred\\nFORGED\\tline")
        """,
    )
    shell.enqueue("bad.options(id='b').call()", module="bad")
    shell.work("bad")

    listed = line("jobs", SELARAS_APP="bad:app").stdout
    shown = line("jobs", "show", "b", SELARAS_APP="bad:app").stdout

    assert len(listed.splitlines()) == 2
    assert "\x1b" not in listed + shown


def test_bytes_that_nobody_wrote_are_shown_as_such(shell: Shell, line: Line) -> None:
    shell.enqueue("slow.options(id='s').call(1)")
    shell.python(
        """
        import sqlite3
        con = sqlite3.connect("selaras.db")
        [table] = [t for (t,) in con.execute("select name from sqlite_master where type='table'")
                   if "payload" in [c[1] for c in con.execute(f"pragma table_info({t})")]]
        con.execute(f"update {table} set payload = x'80049526'")
        con.commit()
        """
    )

    job = line.json("jobs", "show", "s")

    assert "unreadable" in job["arguments"]["payload"]
    assert line("jobs").exit_code == 0


@pytest.mark.parametrize(
    "command",
    [("jobs", "list", "--json"), ("jobs", "retry", "--failed"), ("jobs", "purge", "--state", "failed", "--yes")],
)
def test_whoever_names_a_queue_that_is_none_is_told(shell: Shell, line: Line, command: tuple[str, ...]) -> None:
    shell.enqueue("odd.call(1)")

    done = line(*command, "-A", "shop:app", "--queue", "mial")

    assert done.exit_code == 0
    assert "there is no queue 'mial'; did you mean 'mail'?" in done.stderr


def test_a_list_of_a_name_that_is_none_says_so(shell: Shell, line: Line) -> None:
    shell.enqueue("odd.call(1)")

    queue, task, known = (
        line("jobs", "list", "-A", "shop:app", *which)
        for which in (("--queue", "mial"), ("--task", "reprise"), ("--queue", "mail"))
    )

    assert "there is no queue 'mial'; did you mean 'mail'?" in queue.stderr
    assert "the app has no task 'reprise'; did you mean 'reprice'?" in task.stderr
    assert known.stderr == ""
    assert queue.exit_code == task.exit_code == known.exit_code == 0


def test_a_scope_is_shown_without_arguments(shell: Shell, line: Line) -> None:
    shell.python("""
        import asyncio
        from shop import app, product, slow

        async def main():
            async with app:
                async with product.key(1).writing() as scope:
                    await slow.options(id="child").enqueue(1)
                    open("scope", "w").write(scope._session.owner.job)

        asyncio.run(main())
    """)

    scope = line.json("jobs", "show", (shell.directory / "scope").read_text())

    assert (scope["task"], scope["arguments"]) == ("writing", {})
    assert "argument" not in line("jobs", "show", scope["id"]).stdout
