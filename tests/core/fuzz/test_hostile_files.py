"""Every door of the platform, a command that opens a file, with everything that anyone may put there.

`make thorough` tries two thousand inputs, `make test` one at each door.
"""

from __future__ import annotations

import faulthandler
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from fuzzing import ROOT, WAIT_SECONDS, outcome, seeds
from hostile_files import HOSTILE, place
from levelfield.specs.paths import RunPaths

REPORTED = ROOT / "tests" / "core" / "data" / "reported"
DRY = "--dry-run --no-store --scale smoke"
CURVE = "step,loss\n" + "".join(f"{step},{10 / step}\n" for step in range(1, 40))
ADAPTER = """
from levelfield.contracts.vendor import ContainerOptions, Device, Sample

class Adapter:
    def __init__(self, spec):
        self.spec = spec
    def devices(self):
        return [Device(0, "F1", "x", 8 * 2**30)]
    def sample(self, devices):
        return [Sample(0, power_watts="12 W")]
    def container(self, devices):
        return ContainerOptions()
    def software(self):
        return {}
"""


@dataclass(frozen=True)
class Door:
    """A file and the command lines that open it. file: its place in the test's folder, where `{}` is the folder.

    source: the content of a good one; None: `made_before` makes it. lines: one of them is drawn for each input; FILE
    stands for the file, and DRY for the options of a dry run.
    """

    file: str
    source: Callable[[], bytes] | None
    lines: tuple[str, ...]


def shipped(path: str, **changes: object) -> Callable[[], bytes]:
    """A file of the checkout, or a document of it with keys changed."""

    def content() -> bytes:
        source = (ROOT / path).read_bytes()
        return yaml.safe_dump({**yaml.safe_load(source), **changes}).encode() if changes else source

    return content


def text(content: str) -> Callable[[], bytes]:
    return content.encode


FAKE = "tests/core/plugins"
SUITE = """schema: levelfield.suite/1
title: Two entries of one group
entries:
  - {case: "gpt2_small:torch", group: gpt2_small, scale: smoke}
  - {case: "gpt2_small:jax", group: gpt2_small, scale: smoke}
"""
CHIPS = "schema: levelfield.chips/1\nvendors: {nvidia: [{name: H100, peaks: {bf16: {tflops: 900, source: mine}}}]}\n"
PRICES = "schema: levelfield.prices/1\ncurrency: EUR\nchips: {H100: {per: device, rent: 2.0}}\n"
HOSTS = "schema: levelfield.hosts/1\nhosts: [{name: a, address: 10.0.0.1}]\n"
ON_ONE_HOST = "--case gpt2_small:torch:cpu:1:1 --launcher ssh --hosts {}/hosts.yaml"
ON_TWO = "--case gpt2_small:torch:cpu:2:1 --site {}/x.yaml"
REACHES = {"cpu": {"device": "cpu", "backend": "gloo"}}
ALIGN = "align curves {}/FILE {}/good.csv --against {}/better.csv {}/worse.csv"
READ = "evidence read {}/FILE --source tests.example --date 2026-01-01 --output {}/read.json"
CONFIG = """{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
"rms_norm_eps": 1e-5, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 64,
"architectures": ["LlamaForCausalLM"]}"""
DOORS: dict[str, Door] = {
    "case": Door("x.yaml", shipped("configs/cases/gpt2_small.yaml", name="x"), (
        "--case-file {}/x.yaml --case x:torch DRY",
        "plan x --case-file {}/x.yaml --chip H100",
        "show x --case-file {}/x.yaml", "case check x --case-file {}/x.yaml")),
    "derived case": Door("configs/cases/x.yaml", shipped("configs/cases/gpt3_6.7B_bf16.yaml", name="x"), (
        "show cases --plugins {}", "--case x:torch DRY --plugins {}")),
    "suite": Door("x.yaml", text(SUITE), (
        "--suite {}/x.yaml --dry-run --no-store",
        "nightly run --suite {}/x.yaml --python python3 --budget 1m --store {}/s.sqlite")),
    "tuning of a vendor": Door("vendors/fake/tuning/tiny.yaml", shipped(f"{FAKE}/vendors/fake/tuning/tiny.yaml"), (
        "--case tiny:fake:fake --dry-run --no-store --plugins {}", "show tiny --vendor fake --plugins {}")),
    "strategy": Door("config_x.py", text("tensor_parallel = 1\npipeline_parallel = 1\ntrain_micro_batch_size = 1\n"), (
        "--case gpt2_small:torch --strategy {}/config_x.py DRY",)),
    "chips": Door("x.yaml", text(CHIPS), (
        "plan gpt2_small --chips {}/x.yaml --chip H100 --devices 8", "show chips --chips {}/x.yaml")),
    "prices": Door("x.yaml", text(PRICES), (
        "plan gpt2_small --prices {}/x.yaml --tokens 1000000000 --chip H100 --devices 8",)),
    "site of ssh": Door("x.yaml", shipped("configs/sites/example-ssh.yaml"), (
        "site check --launcher ssh --site {}/x.yaml --hosts {}/hosts.yaml",
        ON_ONE_HOST + " --site {}/x.yaml DRY")),
    "site of Slurm": Door("x.yaml", shipped("configs/sites/example-slurm.yaml"), (
        ON_TWO + " --launcher slurm --runs /shared/levelfield/runs DRY",)),
    "site of Kubernetes": Door("x.yaml", shipped("configs/sites/example-kubernetes.yaml"), (
        ON_TWO + " --launcher kubernetes DRY",)),
    "hosts": Door("x.yaml", text(HOSTS), (
        "--case gpt2_small:torch:cpu:1:1 --launcher ssh --hosts {}/x.yaml DRY",
        "site check --launcher ssh --hosts {}/x.yaml")),
    "vendor": Door("vendors/other/vendor.yaml", shipped("vendors/iluvatar/vendor.yaml", name="other"), (
        "show vendors --plugins {}", "show chips --plugins {}")),
    "adapter": Door("vendors/fake/adapter.py", text(ADAPTER), (
        "show vendors --plugins {}", "--case tiny:fake:fake:1:1 --dry-run --no-store --plugins {}")),
    "framework": Door("models/other/implementation.yaml", shipped(
        f"{FAKE}/models/fake/implementation.yaml", framework="other", reaches=REACHES), (
        "show frameworks --plugins {}", "--case gpt2_small:other:cpu:1:1 DRY --plugins {}")),
    "config.json": Door("config.json", text(CONFIG), ("case new x --from {}/config.json --output {}/new",)),
    "curve": Door("x.csv", text(CURVE), (ALIGN,)),
    "curve in JSON": Door("x.json", text('{"log_history": [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]}'), (
        ALIGN,)),
    "log of Megatron": Door("x.log", shipped("tests/core/data/reported/megatron.log"), (
        READ,
        ALIGN)),
    "log of MLPerf": Door("x.txt", shipped("tests/core/data/reported/mlperf.txt"), (
        READ,)),
    "log of FlagPerf": Door("x.log", shipped("tests/core/data/reported/flagperf.log"), (
        READ,)),
    "store": Door("x.sqlite", None, (
        "store info --store {}/x.sqlite", "store check --store {}/x.sqlite", "nightly history x --store {}/x.sqlite",
        "store import {}/x.sqlite --store {}/new.sqlite", "report pages {}/pages --store {}/x.sqlite",
        "store restore {}/x.sqlite --store {}/new.sqlite", "nightly gate --store {}/x.sqlite")),
    "records": Door("x.jsonl", None, (
        "store import {}/x.jsonl --store {}/new.sqlite",)),
    "text of a corpus": Door("x.txt", text("one line\nand another\n" * 50), (
        "data prepare --input {}/x.txt --tokenizer bytes --output {}/corpus",)),
    "lines of a corpus": Door("x.jsonl", text('{"text": "one line"}\n{"text": "and another"}\n' * 50), (
        "data prepare --input {}/x.jsonl --tokenizer bytes --output {}/corpus",)),
    "tokenizer": Door("x.json", text('{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'), (
        "data prepare --input {}/good.csv --tokenizer {}/x.json --end-token a --output {}/corpus",)),
    "webhook": Door("url", text("https://127.0.0.1/x\n"), (
        "nightly run --suite none --webhook-file {}/url --store {}/s.sqlite",)),
    "key": Door("key", None, (
        "evidence bundle {run} --output {}/a.zip --sign {}/key",)),
    "signers": Door("signers", None, (
        "evidence verify {}/signed.zip --allowed-signers {}/signers",)),
}  # fmt: skip
OF_A_RUN = (
    "plan.json", "job.json", "outcome.json", "result.json", "status.json", "provenance.json", "request.json",
    "reference.json", "certificate.json", "preflight.json", "telemetry.jsonl", "events/rank0.jsonl", "logs/rank0.log",
    "events/rank1.alive", "step-parts.json",
)  # fmt: skip
READERS = (
    "report {run}", "report {run} {other}", "show runs", "evidence collect {run}", "evidence collect {run} --check",
    "compare {run} {other}", "evidence bundle {run} --output {}/b.zip", "report explain {run}",
    "report pages {}/pages {run}",
    "align {run} --reference {other}", "store import {run} --store {}/new.sqlite", "run attach {run} --plugins {}",
)  # fmt: skip
# Exit codes of a line with a good file other than 0, by its first words: no host answers, and no series is there.
GOOD = {
    "site check": 4,
    "align curves": 4,
    "nightly history": 2,
    "nightly run": 3,
    "store import {}/x.sqlite": 2,
    "nightly run --suite none": 2,
}
KINDS = list(HOSTILE)


@pytest.fixture(autouse=True)
def ended_when_stuck() -> Iterator[None]:
    """A library that holds the interpreter takes no alarm: the process ends, with the line where it is."""
    faulthandler.dump_traceback_later(2 * WAIT_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def there(run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the inputs, with good ones beside them and a run."""
    monkeypatch.setenv("LEVELFIELD_RUNS", str(run.root.parent))
    monkeypatch.setenv("LEVELFIELD_STORE", "none")
    folder = tmp_path / "there"
    shutil.copytree(ROOT / FAKE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "good.csv").write_text(CURVE)
    (folder / "better.csv").write_text(CURVE.replace("1,10", "1,9"))
    (folder / "worse.csv").write_text(CURVE.replace("1,10", "1,11"))
    (folder / "hosts.yaml").write_text(HOSTS)
    (folder / "models" / "other").mkdir()
    shutil.copy(folder / "models/fake/train.py", folder / "models/other")
    return folder


def tried(line: str, folder: Path, run: RunPaths, file: str = "") -> int:
    """Run one command and return its exit code. Fails as `outcome`."""
    line = line.replace("FILE", file).replace("DRY", DRY)
    words = [word.format(folder, run=run.root, other=run.root.with_name("other")) for word in line.split(" ")]
    named = [path.resolve() for path in folder.iterdir() if path.is_symlink() and path.exists()]
    return outcome(*words, named=[folder, *named])[0]


def made_before(name: str, folder: Path, run: RunPaths) -> bytes:
    """Make the good file of a door, and what its command needs beside it. Return its content."""
    if name in ("store", "records"):
        assert tried("evidence collect {run}", folder, run) == 0
        assert tried("store import {run} --store {}/good.sqlite", folder, run) == 0
        assert tried("store export --output {}/good.jsonl --store {}/good.sqlite", folder, run) == 0
        return (folder / ("good.sqlite" if name == "store" else "good.jsonl")).read_bytes()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "mine")], check=True)
    assert tried("evidence collect {run}", folder, run) == 0
    assert tried("evidence bundle {run} --output {}/signed.zip --sign {}/mine", folder, run) == 0
    return (folder / "mine").read_bytes() if name == "key" else b"me " + (folder / "mine.pub").read_bytes()


def source_of(name: str, folder: Path, run: RunPaths) -> bytes:
    """The content of the good file of a door."""
    source = DOORS[name].source
    return source() if source else made_before(name, folder, run)


@pytest.mark.parametrize("name", DOORS)
def test_a_door_opens_a_good_file(name: str, run: RunPaths, there: Path) -> None:
    """Else the others would try nothing: a good file is read by each line, or the line has its own words for it."""
    door, source = DOORS[name], source_of(name, there, run)
    for line in door.lines:
        (there / door.file).parent.mkdir(parents=True, exist_ok=True)
        (there / door.file).write_bytes(source)
        (there / door.file).chmod(0o600)
        expected = max((words for words in GOOD if line.startswith(words)), key=len, default="")
        assert tried(line, there, run, door.file) == GOOD.get(expected, 0), line


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("name", DOORS)
def test_a_door_takes_any_file(name: str, seed: int, run: RunPaths, there: Path) -> None:
    draw, door = random.Random(f"{name} {seed}"), DOORS[name]
    kind = KINDS[(seed + 7 * list(DOORS).index(name)) % len(KINDS)]
    place(kind, there / door.file, source_of(name, there, run), draw)
    tried(draw.choice(door.lines), there, run, door.file)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_reader_of_runs_takes_any_file(seed: int, run: RunPaths, there: Path) -> None:
    draw = random.Random(f"run {seed}")
    assert tried("evidence collect {run}", there, run) == 0
    shutil.copytree(run.root, run.root.with_name("other"))
    file = run.root / draw.choice(OF_A_RUN)
    source = file.read_bytes() if file.is_file() else b'{"schema": "levelfield.result/1"}'
    place(draw.choice(KINDS), file, source, draw)
    tried(draw.choice(READERS), there, run)


@pytest.mark.parametrize("seed", seeds(2))
def test_a_reader_of_bundles_takes_any_file(seed: int, run: RunPaths, there: Path) -> None:
    draw = random.Random(f"bundle {seed}")
    assert tried("evidence collect {run}", there, run) == 0
    assert tried("evidence bundle {run} --output {}/a.zip", there, run) == 0
    place(draw.choice(KINDS), there / "x.zip", (there / "a.zip").read_bytes(), draw)
    tried(draw.choice(("evidence verify {}/x.zip", "store import {}/x.zip --store {}/new.sqlite")), there, run)
