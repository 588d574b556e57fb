"""Signatures of bundles by the real ssh-keygen, with keys that the tests make."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import bundled, members_of, with_manifest, written
from levelfield.cli.main import main
from levelfield.specs.bundle import SIGNATURE
from levelfield.specs.paths import RunPaths

NAME = "me@example.com"
Verify = Callable[..., tuple[int, str]]


def made_key(folder: Path, name: str) -> Path:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, recorded: Path) -> Path:
    """Two keys, the file that allows the first, and a bundle that it signed."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    place = tmp_path_factory.mktemp("keys")
    mine, _ = made_key(place, "mine"), made_key(place, "other")
    (place / "signers").write_text(f"{NAME} {mine.with_suffix('.pub').read_text()}")
    (place / "others").write_text(f"other@example.com {(place / 'other.pub').read_text()}")
    assert main(["evidence", "bundle", str(recorded), "--output", str(place / "signed.zip"), "--sign", str(mine)]) == 0
    return place


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    def run(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["evidence", "verify", *map(str, arguments)])
        return code, " ".join("".join(capsys.readouterr()).split())

    return run


def test_a_signature_of_an_allowed_signer_is_named(folder: Path, verify: Verify) -> None:
    code, text = verify(folder / "signed.zip", "--allowed-signers", folder / "signers")
    assert code == 0 and f"{NAME}: Good" in text
    assert verify(folder / "signed.zip", "--allowed-signers", folder / "signers", "--signer", NAME)[0] == 0


def test_a_signature_that_nobody_checked_is_called_so(folder: Path, verify: Verify) -> None:
    code, text = verify(folder / "signed.zip")
    assert code == 0
    assert "not checked" in text and "--allowed-signers" in text


@pytest.mark.parametrize(
    "arguments", [["--allowed-signers", "others"], ["--allowed-signers", "signers", "--signer", "you@example.com"]]
)
def test_a_signature_of_another_does_not_hold(folder: Path, verify: Verify, arguments: list[str]) -> None:
    paths = [folder / word if word in ("others", "signers") else word for word in arguments]
    code, text = verify(folder / "signed.zip", *paths)
    assert code == 4 and "the signature" in text


def test_a_manifest_changed_after_it_was_signed_does_not_hold(folder: Path, verify: Verify, tmp_path: Path) -> None:
    made = with_manifest(members_of(folder / "signed.zip"), lambda m: m.model_copy(update={"kept": 1}))
    path = written(tmp_path / "b.zip", made)
    assert verify(path)[0] == 0
    code, text = verify(path, "--allowed-signers", folder / "signers")
    assert code == 4 and "the manifest" in text


def test_a_signature_for_another_purpose_does_not_hold(folder: Path, verify: Verify, tmp_path: Path) -> None:
    members = members_of(folder / "signed.zip")
    argv = ["ssh-keygen", "-Y", "sign", "-n", "git", "-f", str(folder / "mine")]
    other = subprocess.run(argv, input=members["manifest.json"], capture_output=True, check=True).stdout
    path = written(tmp_path / "b.zip", {**members, SIGNATURE: other})
    assert verify(path, "--allowed-signers", folder / "signers")[0] == 4


@pytest.mark.parametrize("option", ["--sign", "--allowed-signers"])
def test_a_large_file_is_no_key(
    option: str, folder: Path, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ssh-keygen would search all of it, for minutes."""
    large = tmp_path / "large"
    large.write_bytes(b"a" * 30_000_000)
    words = [str(folder / "signed.zip"), option, str(large)]
    if option == "--sign":
        words = [str(recorded), "--output", str(tmp_path / "a.zip"), option, str(large)]
    assert main(["evidence", "bundle" if option == "--sign" else "verify", *words]) == 2
    assert "found 30,000,000 bytes, expected at most" in capsys.readouterr().err


@pytest.mark.parametrize("signature", [None, b"", b"nonsense"])
def test_a_bundle_without_a_signature_does_not_pass_where_one_is_demanded(
    folder: Path, verify: Verify, tmp_path: Path, signature: bytes | None
) -> None:
    members = {name: content for name, content in members_of(folder / "signed.zip").items() if name != SIGNATURE}
    path = written(tmp_path / "b.zip", members if signature is None else {**members, SIGNATURE: signature})
    assert verify(path, "--allowed-signers", folder / "signers")[0] == 4


def test_a_key_that_is_none_writes_nothing(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text("no key")
    for key in ("key", "absent"):
        argv = ["evidence", "bundle", str(recorded), "--output", str(tmp_path / "b.zip"), "--sign", str(tmp_path / key)]
        assert main(argv) == 2 and "--sign" in capsys.readouterr().err
    assert not (tmp_path / "b.zip").exists()


def test_a_missing_ssh_keygen_is_named(
    folder: Path, verify: Verify, run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsigned = bundled(tmp_path / "b.zip", run)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, text = verify(folder / "signed.zip", "--allowed-signers", folder / "signers")
    assert code == 2
    assert "ssh-keygen" in text and "PATH" in text
    assert verify(unsigned)[0] == 0


def test_a_signer_without_the_file_of_signers_is_wrong_usage(folder: Path, verify: Verify) -> None:
    assert verify(folder / "signed.zip", "--signer", NAME)[0] == 2
    assert verify(folder / "signed.zip", "--allowed-signers", folder / "absent")[0] == 2
