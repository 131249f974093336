"""`selaras doctor` on a store of files: what it finds, what it says to do, and that it changes nothing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.edges.shell import Line, everywhere

from selaras._stores.sqlite.checkup import file_system_of


def about(found: dict[str, Any], word: str) -> list[dict[str, Any]]:
    return [finding for finding in found["findings"] if finding["about"] == word]


@everywhere
def test_a_store_in_order_has_nothing_to_do(line: Line, url: str) -> None:
    line.shell.enqueue("reprice.call(42, 2.0)")
    result = line("doctor")
    assert result.exit_code == 0
    assert result.stdout.startswith("LEVEL\tABOUT\tWHERE\tFOUND\tREMEDY\n")
    found = line.json("doctor")
    assert found["store"] == f"sqlite:///{line.shell.directory.resolve()}/selaras.db"
    assert [finding["found"] for finding in about(found, "integrity")] == ["ok"] * (4 if url else 1)
    assert not [finding for finding in found["findings"] if finding["level"] == "error"]
    assert about(found, "size")[0]["numbers"]["bytes"] > 0


def test_a_store_that_is_not_there_is_not_made(line: Line) -> None:
    found = line.json("doctor")
    [finding] = about(found, "file")
    assert (finding["level"], finding["found"]) == ("warning", "there is none")
    assert not (line.shell.directory / "selaras.db").exists()


def test_a_damaged_store_is_an_error(line: Line) -> None:
    line.shell.enqueue(*["reprice.call(42, 2.0)"] * 200)
    file = line.shell.directory / "selaras.db"
    with closing(sqlite3.connect(file)) as con:
        con.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [root] = con.execute(
            "SELECT rootpage FROM sqlite_schema WHERE type = 'index' AND tbl_name LIKE 'job%'"
        ).fetchone()
        [size] = con.execute("PRAGMA page_size").fetchone()
    with file.open("r+b") as writing:
        writing.seek((root - 1) * size + 100)
        writing.write(os.urandom(size - 100))
    result = line("doctor", "--json")
    assert result.exit_code == 1
    assert '"level": "error"' in result.stdout
    assert "restore a backup" in result.stdout


def test_a_missing_file_of_several_is_an_error(line: Line) -> None:
    line.shell.env["SELARAS_URL"] = "sqlite:///selaras.db?partitions=2"
    line.shell.enqueue()
    (line.shell.directory / "selaras.db.p1").unlink()
    result = line("doctor")
    assert result.exit_code == 1
    assert "partition 1 of 2 is missing" in result.stdout


def test_another_programs_file_is_an_error_and_stays_as_it_was(line: Line) -> None:
    file = line.shell.directory / "selaras.db"
    with closing(sqlite3.connect(file)) as con:
        con.execute("CREATE TABLE cats (name)")
    before = file.read_bytes()
    result = line("doctor")
    assert result.exit_code == 1
    assert "another program's database" in result.stdout
    assert file.read_bytes() == before


def test_a_store_in_memory_cannot_be_looked_at(line: Line) -> None:
    assert line("doctor", SELARAS_URL="memory://").exit_code == 2


@pytest.mark.parametrize(
    ("folder", "kind"), [("/srv/share/jobs", "nfs4"), ("/srv", "ext4"), ("/srv/two words", "tmpfs"), ("/proc", "ext4")]
)
def test_a_folder_is_on_the_innermost_mount(tmp_path: Path, folder: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /srv/share rw - nfs4 nas:/x rw\n"
        "31 22 0:41 / /srv/two\\040words rw master:2 - tmpfs tmpfs rw\n"
    )
    assert file_system_of(Path(folder), mounts) == kind
