"""`selaras worker`, as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from tests.edges.shell import Shell, everywhere, strict
from tests.redis.servers import HOST, RedisServer


def worker(shell: Shell, *args: str, **env: str) -> subprocess.Popen[str]:
    return shell.start(sys.executable, "-m", "selaras", "worker", "shop:app", *args, **env)


def until(what: Callable[[], bool]) -> None:
    for _ in range(150):
        if what():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen in 15 s")


def state(shell: Shell, id: str) -> str | None:
    done = shell.selaras("jobs", "show", id, "--json", "--app", "shop:app")
    return str(strict(done.stdout)["state"]) if done.returncode == 0 else None


def workers(shell: Shell) -> int:
    done = shell.selaras("queues", "--json", "--app", "shop:app")
    return max((queue["workers"] for queue in strict(done.stdout)), default=0) if done.returncode == 0 else 0


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it did not end:\n{out}\n{err}") from None
    return process.returncode, out, err


def test_it_says_where_it_works_what_it_runs_and_how_to_stop_it(shell: Shell) -> None:
    code, out, err = ended(worker(shell, "--burst", "-c", "7", "--grace", "3", "--warm-ahead", "50"))

    assert code == 0
    assert out == ""
    for said in (
        f"store     sqlite:///{shell.directory.resolve()}/selaras.db",
        "queues    default, mail",
        "reprice    async   queue default  writes product, in line of its product",
        "send_mail  thread  queue mail     in line mail:{customer}",
        "product  ttl 5m  local and shared tiers",
        "at once   7 async, 16 threads, 2 child processes",
        "ahead     while there is no room, what the next 50 jobs will read",
        "retries 3, 1s to 5m apart; timeout 10m; results kept 1h, failed jobs 7d",
        "lease     15s, renewed every 5s",
        "Ctrl-C or SIGTERM: running jobs get 3s to finish",
    ):
        assert said in err


@everywhere
def test_burst_runs_what_is_ready_and_tells_what_failed(shell: Shell) -> None:
    shell.enqueue(
        "reprice.options(id='a').call(42, 2)",
        "reprice.options(id='b').call(42, -1)",
        "reprice.options(id='c').call(42, 3)",
    )

    code, _, err = ended(worker(shell, "--burst"))

    assert code == 0
    assert "reprice b failed for good (attempt 1" in err
    assert "ValueError: no price is below 0" in err
    assert "reprice a" not in err
    assert [state(shell, id) for id in "abc"] == ["succeeded", "failed", "succeeded"]


def test_a_log_in_json_is_one_strict_object_a_line(shell: Shell) -> None:
    shell.enqueue("reprice.options(id='b').call(42, -1)")

    _, _, err = ended(worker(shell, "--burst", "--json"))

    lines = [strict(line) for line in err.splitlines()]
    assert lines[0]["queues"] == ["default", "mail"]
    assert lines[0]["tasks"][0] == {
        "name": "reprice",
        "queue": "default",
        "mode": "loop",
        "writes": ["product"],
        "line": "of its product",
    }
    [failed] = [line for line in lines if line.get("job") == "b"]
    assert (failed["level"], failed["task"], failed["attempt"]) == ("error", "reprice", 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_what_runs_finish_and_ends_with_0(shell: Shell, number: signal.Signals) -> None:
    shell.enqueue("slow.options(id='s').call(1.5)")
    process = worker(shell)
    until((shell.directory / "started").exists)

    process.send_signal(number)

    code, _, err = ended(process)
    assert code == 0
    assert f"stopping: no new jobs, 1 running ({number.name})" in err
    assert state(shell, "s") == "succeeded"


HURT = """
import os, signal
class Hurt:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "selaras: stopped by SIGTERM: no job was running"),
        ("Hurt()", "stopping: no new jobs, 0 running (SIGTERM)"),  # what is raised in a finalizer is dropped
    ],
)
def test_a_signal_that_comes_while_the_app_is_imported_ends_it_in_order(shell: Shell, how: str, says: str) -> None:
    module = shell.directory / "shop.py"
    module.write_text(module.read_text() + HURT + how)

    code, out, err = ended(worker(shell))

    assert (code, out) == (0, "")
    assert says in err


def test_what_does_not_finish_within_the_grace_is_given_back_and_the_end_is_orderly(shell: Shell) -> None:
    shell.enqueue("slow.options(id='s').call(60)")
    process = worker(shell, "--grace", "0.2")
    until((shell.directory / "started").exists)

    process.send_signal(signal.SIGTERM)

    code, _, err = ended(process)
    assert code == 0
    assert "1 job given back" in err
    assert state(shell, "s") == "ready"


def test_the_echo_of_a_signal_is_no_second_one(shell: Shell) -> None:
    """`timeout` and others send it to the process and at once to its group."""
    shell.enqueue("slow.options(id='s').call(1.5)")
    process = worker(shell)
    until((shell.directory / "started").exists)

    process.send_signal(signal.SIGTERM)
    time.sleep(0.03)  # so long that both are delivered
    process.send_signal(signal.SIGTERM)

    assert ended(process)[0] == 0
    assert state(shell, "s") == "succeeded"


def test_a_second_signal_stops_hard_with_another_code(shell: Shell) -> None:
    shell.enqueue("slow.options(id='s').call(60)")
    process = worker(shell)
    until((shell.directory / "started").exists)

    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)

    assert ended(process)[0] == 4


def test_several_processes_work_side_by_side_and_one_that_dies_is_replaced(shell: Shell) -> None:
    fleet = worker(shell, "--processes", "2", "--lease", "1s")
    until(lambda: workers(shell) == 2)
    children = subprocess.run(["pgrep", "-P", str(fleet.pid)], capture_output=True, text=True, check=True)
    victim = int(children.stdout.split()[0])
    subprocess.run(["kill", "-9", str(victim)], check=True)

    time.sleep(1.5)
    until(lambda: workers(shell) == 2)
    fleet.send_signal(signal.SIGTERM)

    code, _, err = ended(fleet)
    assert code == 0
    assert f"(pid {victim}) died with -9; replaced in" in err
    assert err.count("selaras 0.1.0") == 1


def test_a_queue_that_no_task_uses_is_doubted(shell: Shell) -> None:
    code, _, err = ended(worker(shell, "--burst", "-q", "mial", "-q", "default"))

    assert code == 0
    assert "no task of the app uses queue 'mial'; did you mean 'mail'?" in err
    assert "does not serve 'mail'" in err


def test_an_app_without_tasks_is_refused(shell: Shell) -> None:
    shell.write("empty.py", "from selaras import Selaras\napp = Selaras()\n")

    done = shell.selaras("worker", "empty:app")

    assert done.returncode == 2
    assert "declares no task" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--processes", "0"), "--processes"),
        (("--grace", "soon"), "units are us, ms, s, m, h, d, w"),
        (("-c", "many"), "--concurrency"),
        (("--log-level", "loud"), "--log-level"),
    ],
)
def test_options_that_cannot_be_are_usage_errors(shell: Shell, args: tuple[str, ...], said: str) -> None:
    code, _, err = ended(worker(shell, *args))

    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_options_come_from_the_environment_too(shell: Shell) -> None:
    done = shell.selaras(
        "worker",
        SELARAS_APP="shop:app",
        SELARAS_BURST="1",
        SELARAS_QUEUES="mail default",
        SELARAS_CONCURRENCY="9",
        SELARAS_GRACE="7s",
        SELARAS_LOG_LEVEL="error",
    )

    assert done.returncode == 0, done.stderr
    assert "queues    mail, default" in done.stderr
    assert "9 async" in done.stderr
    assert "running jobs get 7s" in done.stderr
    assert "INFO" not in done.stderr


def test_a_store_that_cannot_be_opened_ends_it_with_3(shell: Shell) -> None:
    done = shell.selaras("worker", "shop:app", "--url", "sqlite:////proc/no/such.db")

    assert done.returncode == 3
    assert "/proc/no/such.db" in done.stderr
    assert "SIGTERM" not in done.stderr, "it said that it works"
    assert "Traceback" not in done.stderr


def test_it_starts_without_a_warning_even_where_warnings_are_errors(shell: Shell) -> None:
    """BR-098; pytest's own loop and thread make no difference in a process of its own."""
    shell.enqueue("slow.options(id='s').call(0)", "send_mail.call(1, 'x')")

    process = shell.start(sys.executable, "-W", "error", "-X", "dev", "-m", "selaras", "worker", "shop:app", "--burst")

    code, _, err = ended(process)
    assert code == 0, err
    assert "Warning" not in err


def test_debug_tells_every_job(shell: Shell) -> None:
    shell.enqueue("slow.options(id='s').call(0)")

    _, _, err = ended(worker(shell, "--burst", "--log-level", "debug"))

    assert "slow s succeeded (attempt 1" in err


@everywhere
def test_what_this_program_cannot_run_is_told_once_a_task_at_the_start_and_at_the_end(shell: Shell) -> None:
    shell.write(
        "before.py",
        """
        from selaras import Selaras

        app = Selaras()

        @app.task
        async def odd(value: int, other: int) -> None: ...

        @app.task
        async def gone(n: int) -> None: ...
        """,
    )
    shell.enqueue(
        "odd.options(id='odd-1').call(1, 2)",
        "odd.options(id='odd-2').call(1, 2)",
        "gone.options(id='gone').call(1)",
        module="before",
    )

    code, _, err = ended(worker(shell, "--burst"))

    assert code == 0
    assert err.count("cannot run are given back") == 1, err
    assert "task 'odd': jobs that this worker cannot run are given back" in err
    assert err.count("1 unfinished job that shop:app") == 1  # the removed task, which is known at the start
    assert "3 unfinished jobs that shop:app does not know or whose arguments do not fit" in err.splitlines()[-1]
    assert "2 of task 'odd'" in err.splitlines()[-1]
    assert "1 of task 'gone'" in err.splitlines()[-1]
    notes = shell.selaras("jobs", "--app", "shop:app").stdout
    assert notes.count("cannot run: the arguments do not fit task 'odd'") == 2
    gone = shell.selaras("jobs", "show", "gone", "--app", "shop:app").stdout
    assert "waits for  a worker that can run it: " in gone
    assert "task 'gone'" in gone
    odd = shell.selaras("jobs", "show", "odd-1", "--app", "shop:app").stdout
    assert "the arguments do not fit task 'odd'" in odd
    assert "start one" not in odd + gone


def test_what_another_version_gave_back_is_no_fault_of_this_one(shell: Shell) -> None:
    shell.write(
        "before.py",
        """
        from selaras import Selaras

        app = Selaras()

        @app.task
        async def odd(value: int, other: int) -> None: ...
        """,
    )
    shell.enqueue("odd.options(id='fits-before-only').call(1, 2)", module="before")
    shell.enqueue("slow.options(id='fits-here').call(0)")
    here = worker(shell, "--burst")
    assert "1 unfinished job that shop:app does not know" in ended(here)[2]

    process = shell.start(sys.executable, "-m", "selaras", "worker", "before:app")
    assert process.stderr is not None
    until_said(process, "started, pid")
    process.send_signal(signal.SIGTERM)

    assert "unfinished" not in ended(process)[2]


def test_a_burst_says_what_is_left_to_others_and_to_time(shell: Shell) -> None:
    shell.enqueue("slow.options(id='s').call(60)")
    shell.enqueue("slow.options(id='later', delay='1h').call(0)")
    shell.enqueue("slow.options(id='after', after=['s']).call(0)")
    killed = worker(shell, "--lease", "60s")
    until((shell.directory / "started").exists)
    killed.kill()
    killed.communicate()

    code, _, err = ended(worker(shell, "--burst"))

    assert code == 0
    assert err.splitlines()[-1].endswith(
        "nothing is left to do here; 1 job running elsewhere, or lost with a worker and brought back once its lease has ended,"
        " 1 job due later, 1 job blocked by jobs that have not succeeded, or by a scope"
    )


def until_said(process: subprocess.Popen[str], word: str) -> str:
    """Read the log until a line has this word; return all that was read."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if word in line:
            return said
    raise AssertionError(said)


def test_a_worker_waits_for_a_server_that_starts_after_it(shell: Shell) -> None:
    server = RedisServer()
    try:
        process = worker(shell, SELARAS_URL=server.url)
        until_said(process, "the worker waits for the store: ")

        server.start()

        until_said(process, "started, pid")
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 0
    finally:
        if server.running:
            server.stop()


def test_a_signal_ends_a_worker_that_waits_for_its_server(shell: Shell) -> None:
    process = worker(shell, SELARAS_URL=RedisServer().url)
    until_said(process, "the worker waits for the store: ")

    process.send_signal(signal.SIGTERM)

    assert ended(process)[0] == 0


@pytest.mark.parametrize("args", [("worker", "shop:app", "--burst"), ("queues", "--app", "shop:app")])
def test_what_does_not_wait_fails_at_once_where_no_server_answers(shell: Shell, args: tuple[str, ...]) -> None:
    assert shell.selaras(*args, SELARAS_URL=RedisServer().url).returncode == 3


@pytest.mark.parametrize(("query", "said"), [("/0", "asks for a password"), ("/99", "has no database of the number")])
def test_a_worker_does_not_wait_for_what_does_not_pass(shell: Shell, query: str, said: str) -> None:
    with RedisServer(password="" if query == "/99" else "secret") as server:
        done = shell.selaras("worker", "shop:app", SELARAS_URL=f"redis://{HOST}:{server.port}{query}")

    assert done.returncode == 2
    assert said in done.stderr
