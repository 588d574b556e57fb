"""Digests of the machine and of its devices: the same for the same ones, and without a name in them."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
from levelfield.contracts.vendor import Device
from levelfield.run.provenance import device_identities, machine_identity


def with_id(folder: Path, text: str) -> Path:
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/machine-id").write_text(text)
    return folder


def test_a_machine_is_known_by_its_identifier_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = with_id(tmp_path / "1", "0123456789abcdef\n"), with_id(tmp_path / "2", "fedcba9876543210\n")
    found = machine_identity(one)
    assert found == machine_identity(one) and found["identity"] != machine_identity(other)["identity"]
    assert found["identity_rests_on"] == ["machine-id", "host name"]
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert machine_identity(one)["identity"] != found["identity"]


@pytest.mark.parametrize("text", [None, "", "\n", "uninitialized\n", "\xff\xfe"])
def test_without_an_identifier_the_name_remains_and_it_is_said(tmp_path: Path, text: str | None) -> None:
    root = tmp_path if text is None else with_id(tmp_path, text)
    assert machine_identity(root)["identity_rests_on"] == ["host name"]


def test_nothing_can_be_read_from_a_digest(tmp_path: Path) -> None:
    text = json.dumps([machine_identity(with_id(tmp_path, "0123456789abcdef")), device_identities([card(0, "GPU-1")])])
    assert "0123456789abcdef" not in text and platform.node() + '"' not in text and "GPU-1" not in text


def card(index: int, identity: str | None) -> Device:
    return Device(index, "A1", "a card", 2**30, identity)


def test_a_device_is_known_by_its_own_identity_in_any_place() -> None:
    first, second = device_identities([card(0, "GPU-1"), card(1, "GPU-2")]), device_identities([card(3, "GPU-1")])
    assert first[0]["identity"] == second[0]["identity"] != first[1]["identity"]
    assert device_identities([card(0, None)]) == [{"index": 0, "identity": None}]
