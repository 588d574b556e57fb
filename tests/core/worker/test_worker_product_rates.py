"""The rate of matrix products: the best shape and way counts, and a product is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from levelfield.worker import best_product_rate, probe_options, product_rates


class Clock:
    """A clock that only products move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def takes(self, seconds: float) -> Callable[[], float]:
        def product() -> float:
            self.now += seconds
            return seconds

        return product


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(product_rates, "time", made)
    return made


def test_the_best_shape_counts_by_its_operations(clock: Clock) -> None:
    """Every product takes a second, so the largest shape has the highest rate."""
    found = best_product_rate(lambda m, k, n: [clock.takes(1.0)], "cpu", 3.0)
    assert found == {"tflops": 2 * 2048**3 / 1e12, "median": 2 * 2048**3 / 1e12, "shape": [2048] * 3, "repeats": 1}


@pytest.mark.parametrize("faster", [0, 1])
def test_the_faster_of_two_libraries_counts(clock: Clock, faster: int) -> None:
    def ways(m: int, k: int, n: int) -> Iterator[Callable[[], float]]:
        times = [2.0, 2.0]
        times[faster] = 1.0
        yield from map(clock.takes, times)

    assert best_product_rate(ways, "cpu", 0.0)["tflops"] == 2 * 2048**3 / 1e12


def test_one_slow_moment_changes_the_median_alone(clock: Clock) -> None:
    turns = [iter([9.0, 1.0, 4.0, 1.0]) for _ in product_rates.ON_PROCESSOR]  # the first sets up

    def ways(m: int, k: int, n: int) -> list[Callable[[], None]]:
        mine = turns.pop(0)

        def product() -> None:
            clock.now += next(mine)

        return [product]

    found = best_product_rate(ways, "cpu", 5 * (1.0 + 4.0 + 1.0))
    assert found["tflops"] == 2 * 2048**3 / 1e12 and found["repeats"] == 3
    assert found["median"] == found["tflops"]


def test_a_product_that_returns_early_is_waited_for(clock: Clock) -> None:
    """Ten products of an accelerator return at once; the wait for the last one has all of their time."""
    waited: list[Any] = []

    def wait(result: float) -> None:
        waited.append(result)
        clock.now += 10.0

    found = best_product_rate(lambda m, k, n: [clock.takes(0.0)], "cuda", 1.0, wait)
    assert found["shape"] == [8192, 4096, 16384] or found["shape"] == [8192] * 3
    assert found["tflops"] == pytest.approx(2 * 8192**3 / 1e12)  # ten products in ten seconds
    assert set(waited) == {0.0} and len(waited) == 2 * len(product_rates.ON_ACCELERATOR)


def test_the_command_line_of_a_probe() -> None:
    found = probe_options(["fp32", "bf16"], ["--device", "cuda", "--dtype", "bf16,fp32", "--threads", "3"])
    assert (found.device, found.dtypes, found.threads, found.seconds) == ("cuda", ["bf16", "fp32"], 3, 2.0)
    assert probe_options(["fp32"], []).dtypes == ["fp32"] and probe_options(["fp32"], []).threads is None


def test_an_unknown_dtype_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        probe_options(["fp32", "bf16"], ["--dtype", "fp32,fp46"])
    assert ended.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "--dtype: unknown fp46;" in message
    assert message.endswith("fp32, bf16")
