"""The port at which the ranks of one machine meet."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest
from levelfield.run.launchers.launched_ranks import free_port


def given_by_the_kernel(folder: Path, text: str) -> Path:
    file = folder / "ip_local_port_range"
    file.write_text(text)
    return file


def test_the_kernel_gives_it_to_no_connection(tmp_path: Path) -> None:
    file = given_by_the_kernel(tmp_path, "20000\t60999\n")
    assert all(10_000 <= free_port(file) < 20_000 for _ in range(20))


def test_processes_of_one_seed_choose_their_own(tmp_path: Path) -> None:
    file = given_by_the_kernel(tmp_path, "32768\t60999\n")
    chosen = set()
    for _ in range(5):
        random.seed(1)
        chosen.add(free_port(file))
    assert len(chosen) > 1


def test_a_port_in_use_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = given_by_the_kernel(tmp_path, "32768\t60999\n")
    first, second = free_port(file), free_port(file)
    answers = iter([first, first, second])
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda self, low, high: next(answers))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        assert free_port(file) == second


@pytest.mark.parametrize("text", ["1024 65535", "", "no numbers here"])
def test_a_range_that_leaves_none_gives_a_free_one(tmp_path: Path, text: str) -> None:
    with socket.socket() as probe:
        probe.bind(("", free_port(given_by_the_kernel(tmp_path, text))))


def test_without_the_file(tmp_path: Path) -> None:
    assert free_port(tmp_path / "missing") > 0
