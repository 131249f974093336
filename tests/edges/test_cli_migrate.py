"""`selaras migrate-store`."""

from __future__ import annotations

import pytest
from tests.edges.shell import Line, Shell
from tests.redis.servers import shared_server
from tests.stores import KINDS

JOBS = ("reprice.options(id='a').call(42, 2.0)", "send_mail.options(id='b').call(1, 'x')")


@pytest.mark.parametrize("kind", [kind for kind in ("sqlite-1", "redis-4") if kind in KINDS])
def test_jobs_move_with_all_that_they_wait_for_and_run_there(shell: Shell, line: Line, kind: str) -> None:
    shell.enqueue(*JOBS, "slow.options(id='c', delay=3600).call(0)", "slow.options(id='d', after=['c']).call(0)")
    new = "sqlite:///new.db"
    if kind.startswith("redis"):
        new = shared_server().url_for(query=f"prefix={shell.directory.name}&partitions=4")

    told = line.json("migrate-store", "sqlite:///selaras.db", new)

    assert (told["moved"], told["there"], told["paused"]) == ({"blocked": 1, "ready": 2, "scheduled": 1}, 0, [])
    assert told["from"].endswith("/selaras.db")
    shell.work()
    assert line.json("jobs", "show", "a")["state"] == "cancelled"
    shell.env["SELARAS_URL"] = new
    shell.work()
    assert line.json("jobs", "show", "a")["state"] == "succeeded"
    assert line.json("jobs", "show", "b")["state"] == "succeeded"
    assert line.json("jobs", "show", "d")["parents"] != []

    again = line("migrate-store", "sqlite:///selaras.db", new, "--merge")
    assert again.stdout.startswith("0 jobs moved from sqlite:")


def test_a_store_with_jobs_is_not_moved_to_unless_that_is_said(shell: Shell, line: Line) -> None:
    shell.enqueue(*JOBS)
    assert line("migrate-store", "sqlite:///selaras.db", "sqlite:///new.db").exit_code == 0
    shell.enqueue(*(call.replace("id='", "id='another-") for call in JOBS))

    refused = line("migrate-store", "sqlite:///selaras.db", "sqlite:///new.db")
    merged = line("migrate-store", "sqlite:///selaras.db", "sqlite:///new.db", "--merge")

    assert refused.exit_code == 2
    assert "has jobs already" in refused.stderr
    assert "--merge" in refused.stderr
    assert "2 jobs moved" in merged.stdout
    assert "2 ready" in merged.stdout


@pytest.mark.parametrize(
    ("source", "target", "code", "said"),
    [
        ("sqlite:///none.db", "sqlite:///new.db", 3, "there is no store at"),
        ("sqlite:///selaras.db", "sqlite:///./selaras.db", 2, "is named twice"),
        ("sqlite:///selaras.db", "memory://", 2, "lives inside one process"),
        ("memory://", "sqlite:///new.db", 2, "lives inside one process"),
    ],
)
def test_what_cannot_be_moved_is_refused_in_words(
    shell: Shell, line: Line, source: str, target: str, code: int, said: str
) -> None:
    shell.enqueue()

    result = line("migrate-store", source, target)

    assert result.exit_code == code
    assert said in result.stderr
    assert not (shell.directory / "new.db").exists()


def test_a_namespace_names_both_stores(shell: Shell, line: Line) -> None:
    shell.write(
        "spaced.py",
        "from selaras import Selaras\napp = Selaras(namespace='n')\n@app.task\nasync def t() -> None: ...\n",
    )
    shell.enqueue("t.options(id='a').call()", module="spaced")

    told = line.json("migrate-store", "sqlite:///selaras.db", "sqlite:///new.db", "--namespace", "n")

    assert told["to"].endswith("/new-n.db")
    assert told["moved"] == {"ready": 1}
