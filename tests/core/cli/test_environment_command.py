"""`environment make`: what a run would make, ahead of it and for devices that are not here. Nothing is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from levelfield.catalog.machine import Machine
from levelfield.cli.main import main
from levelfield.specs.plan import EnvironmentPlan

MAKE = ("environment", "make", "torch", "--vendor", "nvidia")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[EnvironmentPlan]:
    """The plans of environments, in the place of those that are installed."""
    plans: list[EnvironmentPlan] = []

    @contextmanager
    def in_use(plan: EnvironmentPlan, say: object) -> Iterator[None]:
        plans.append(plan)
        yield

    monkeypatch.setattr("levelfield.run.runtimes.environments.use_environment", in_use)
    return plans


def test_environments_of_a_vendor_without_its_devices(
    made: list[EnvironmentPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["environment", "make", "torch", "deepspeed", "--vendor", "nvidia"]) == 0
    assert [plan.name for plan in made] == ["torch-nvidia", "deepspeed-nvidia"]
    assert "torch==2.13.0" in made[0].requirements and not made[0].lacking
    assert capsys.readouterr().out.splitlines()[0].endswith(".venvs/torch-nvidia/bin/python")


def test_an_old_driver_is_refused_before_a_download_except_for_rehearsals(
    made: list[EnvironmentPlan], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "driver", lambda self, vendor: "535.104.05")
    assert main([*MAKE]) == 2
    message = capsys.readouterr().err
    assert "driver 535.104.05," in message and "580.65.06 or" in message and not made
    assert main([*MAKE, "--any-driver"]) == 0
    assert len(made) == 1


def test_what_a_vendor_brings_is_not_made(made: list[EnvironmentPlan], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["environment", "make", "torch", "torch", "--vendor", "ascend"]) == 2
    message = capsys.readouterr().err
    assert "torch on" in message and "no environment" in message
    assert main(["environment", "make", "torhc"]) == 2
    assert "framework 'torhc'" in capsys.readouterr().err and not made
