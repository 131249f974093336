"""Which partition a name belongs to: the same one for everybody, for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from selaras._core.jobs.job import NewJob
from selaras._core.routing import home_of, partition_of

names = st.text(st.characters())  # any text at all, surrogates too


@given(names, st.integers(1, 64))
def test_every_name_belongs_to_one_of_the_partitions(name: str, partitions: int) -> None:
    assert 0 <= partition_of(name, partitions) < partitions


@given(names)
def test_of_one_partition_there_is_no_choice(name: str) -> None:
    assert partition_of(name, 1) == 0


@pytest.mark.parametrize(
    ("name", "partition"), [("", 2), ("product(42)", 1), ("reprice:42", 2), ("é", 3), ("🚲", 1), ("\ud800", 0)]
)
def test_the_partition_of_a_name_never_changes(name: str, partition: int) -> None:
    assert partition_of(name, 4) == partition  # a store on disk rests on these


def test_every_process_agrees_whatever_its_hash_seed() -> None:
    program = "from selaras._core.routing import partition_of; print([partition_of(f'k{i}', 8) for i in range(50)])"

    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("1", "2")
    }

    assert said == {f"{[partition_of(f'k{i}', 8) for i in range(50)]}\n"}


def test_names_are_spread_evenly() -> None:
    counts = [0] * 8
    for number in range(8_000):
        counts[partition_of(f"product({number})", 8)] += 1

    assert min(counts) > 850


@given(names, names.filter(bool), st.integers(1, 16))
def test_a_job_lives_where_its_line_does_and_without_one_where_its_id_does(id: str, line: str, partitions: int) -> None:
    assert home_of(NewJob(id=id, task="t", line=line), partitions) == partition_of(line, partitions)
    assert home_of(NewJob(id=id, task="t"), partitions) == partition_of(id, partitions)
