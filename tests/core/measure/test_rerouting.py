"""Runs of a mixture whose choices of experts differ: what is noise, and what is a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from levelfield.errors import GateFailed
from levelfield.judge.noise import limits_from, noise_of
from levelfield.judge.promotion import add_noise, make_reference
from levelfield.judge.verdict import reference_curve
from levelfield.measure.alignment import AlignmentLimits, TrainingCurve, align
from levelfield.measure.raw_facts import ComparedChoices
from levelfield.measure.routing import (
    FP32_CHOICE_LIMITS,
    OwnChoices,
    choice_reasons,
    routing_difference,
    summarise_own_choices,
)
from levelfield.specs.architecture import Experts, Router
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.reference import NoiseRow, Reference
from recorded_runs import Event, edit, record_run

MIXTURES = Path(__file__).parents[1] / "mixtures"
STEPS = range(1, 21)
LAYERS, EXPERTS = (1, 2), 4
EVEN = (1000,) * EXPERTS  # of one layer: 4,000 choices, 8,000 of a step
ROUTING = {step: dict.fromkeys(LAYERS, EVEN) for step in STEPS}
EXPERT = "layers.1.mlp.experts.up.weight[3]"
OTHER = "layers.1.mlp.experts.up.weight[2]"
NORMS = {"layers.1.mlp.router.weight": 0.3, EXPERT: 0.4, OTHER: 0.5, "final_norm.weight": 1.0}
CURVE = {step: 5.0 * 0.95**step for step in STEPS}
REFERENCE = TrainingCurve(
    20, CURVE, dict.fromkeys(STEPS, 1.0), {1: NORMS, 10: NORMS}, {"work": "w"}, {"head.weight": (3.0, 1.0)}, ROUTING
)
LIMITS = AlignmentLimits(1e-6, 1e-4, 1e-6, "the test", 1e-5, FP32_CHOICE_LIMITS)
Change = Callable[[TrainingCurve], TrainingCurve]


def moved(number: int, first: int, last: int = 20, layer: int = 2) -> Change:
    """From step `first` to `last` so many tokens of a layer take expert 0 in place of expert 1."""

    def change(run: TrainingCurve) -> TrainingCurve:
        counts = {s: dict(layers) for s, layers in run.routing.items()}
        for step in range(first, last + 1):
            a, b, *rest = counts[step][layer]
            counts[step][layer] = (a + number, b - number, *rest)
        return replace(run, routing=counts)

    return change


def scaled(factor: float, first: int) -> Change:
    """Every loss from step `first` on is multiplied."""
    return lambda run: replace(run, losses={s: v * factor if s >= first else v for s, v in run.losses.items()})


def norm(factor: float, step: int, name: str = EXPERT) -> Change:
    def change(run: TrainingCurve) -> TrainingCurve:
        norms = {**run.gradients[step], name: run.gradients[step][name] * factor}
        return replace(run, gradients={**run.gradients, step: norms})

    return change


def weights(factor: float) -> Change:
    return lambda run: replace(run, weights={"head.weight": (3.0 * factor, 1.0)})


def run_with(*changes: Change) -> TrainingCurve:
    run = REFERENCE
    for change in changes:
        run = change(run)
    return run


def verdict(*changes: Change, limits: AlignmentLimits = LIMITS) -> tuple[str, str]:
    finding = align(run_with(*changes), REFERENCE, limits)
    failed = [layer.name for layer in finding.layers if layer.passed is False]
    return finding.verdict, failed[0] if failed else ""


def test_the_same_routing_is_aligned_and_its_layer_says_so() -> None:
    finding = align(REFERENCE, REFERENCE, LIMITS)
    assert finding.verdict == "aligned" and "routing" not in finding.reason
    assert next(layer.detail for layer in finding.layers if layer.name == "routing").startswith("0 of 160,000 ")


def test_a_dense_reference_has_no_routing_layer() -> None:
    dense = replace(REFERENCE, routing={})
    assert "routing" not in [layer.name for layer in align(dense, dense, LIMITS).layers]


def test_the_number_the_first_step_and_the_layer_are_named() -> None:
    differences = routing_difference(run_with(moved(3, 17)).routing, ROUTING)
    assert (differences.first, differences.layer) == (17, 2)
    assert differences.sentence.startswith("12 of 160,000 ")
    assert differences.sentence.endswith("step 17 layer 2")


# -- a run that followed the reference's choices


def differing(number: int, margin: float, step: int = 17, gates: float = 0.0) -> Change:
    """In one step so many own choices differ, by a margin, and the gates are off by a part."""
    return lambda run: replace(run, own_choices={**run.own_choices, step: OwnChoices(8000, number, margin, 2, gates)})


FOLLOWED = replace(
    REFERENCE, choices_digest="sha256:f", own_choices={step: OwnChoices(8000, 0, 0.0, 1) for step in STEPS}
)
KNOWN = replace(REFERENCE, choices_digest="sha256:f")


def followed(*changes: Change, limits: AlignmentLimits = LIMITS) -> tuple[str, str]:
    run = FOLLOWED
    for change in changes:
        run = change(run)
    finding = align(run, KNOWN, limits)
    return finding.verdict, next((layer.name for layer in finding.layers if layer.passed is False), "")


HONEST: dict[str, tuple[Change, ...]] = {
    "nothing differs": (),
    "a near tie": (differing(1, 3e-7),),
    "near ties in many steps": tuple(differing(3, 2e-6, step) for step in STEPS),
    "a near tie, and the last digits of a loss": (differing(2, 1e-6), scaled(1 + 5e-7, 17)),
    "gates' last digits": (differing(0, 0.0, 5, 5e-8),),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_rounding_changes_is_aligned(name: str) -> None:
    assert followed(*HONEST[name]) == ("aligned", "")


FAULTS: dict[str, tuple[tuple[Change, ...], str]] = {
    "a choice that is no near tie": ((differing(1, 1e-3),), "routing"),
    "a margin that is no number": ((differing(1, float("nan")),), "routing"),
    "many near ties at once": ((differing(20, 1e-7),), "routing"),
    "gates off by a millionth": ((differing(0, 0.0, 3, 1e-6),), "routing"),
    "gates that are no numbers": ((differing(0, 0.0, 3, float("nan")),), "routing"),
    "other counts than those that it follows": ((moved(1, 17),), "routing"),
    "a loss after a near tie": ((differing(1, 1e-7, 9), scaled(1 + 2e-5, 17)), "curve"),
    "a gradient after a near tie": ((differing(1, 1e-7, 9), norm(1.001, 10)), "gradients"),
    "final weights after a near tie": ((differing(1, 1e-7, 9), weights(1.0001)), "final weights"),
    "nan after a near tie": ((differing(1, 1e-7, 9), norm(float("nan"), 10)), "gradients"),
    "two experts' gradients exchanged": ((norm(0.5 / 0.4, 1), norm(0.4 / 0.5, 1, OTHER)), "gradients"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_by_its_layer_also_after_a_changed_choice(name: str) -> None:
    changes, layer = FAULTS[name]
    word, finding = followed(*changes)
    assert finding == layer and word in ("different", "diverged")


def test_the_layer_says_how_many_own_choices_differ_and_how_far() -> None:
    finding = align(differing(2, 3e-7)(FOLLOWED), KNOWN, LIMITS)
    layer = next(layer for layer in finding.layers if layer.name == "routing")
    words = ("2 of 160,000", "margin 3.0e-07", "step 17 layer", "layer 2,", "limit 3e-05")
    assert [text for text in words if text not in layer.detail] == [], layer.detail
    assert (layer.value, layer.limit) == (3e-7, 3e-5)


# -- a run that made its own choices


def test_without_following_the_same_counts_are_compared_to_the_end() -> None:
    assert verdict() == ("aligned", "")
    assert verdict(weights(1.01)) == ("different", "final weights")


def test_without_following_nothing_is_compared_from_a_changed_choice_on() -> None:
    """A token that jumps parts two right runs, and hides a fault: neither is said."""
    assert verdict(moved(1, 17), scaled(1 + 2e-5, 17)) == ("inconclusive", "")
    assert verdict(moved(1, 17), weights(2.0)) == ("inconclusive", "")
    assert verdict(moved(1, 1), scaled(1.5, 1)) == ("inconclusive", "")
    finding = align(run_with(moved(1, 17)), REFERENCE, LIMITS)
    assert "not follow" in finding.reason
    assert "step 17" in finding.reason and "layer 2," in finding.reason


def test_without_following_a_fault_before_the_changed_choice_is_found() -> None:
    assert verdict(moved(1, 17), scaled(1 + 2e-5, 16)) == ("diverged", "curve")
    assert verdict(moved(1, 9), norm(1.001, 1)) == ("different", "gradients")


def test_without_following_many_choices_at_once_are_a_fault() -> None:
    assert verdict(moved(20, 17)) == ("different", "routing")
    assert verdict(moved(20, 1)) == ("different", "routing")


def test_a_run_that_follows_others_than_the_reference_has_followed_none() -> None:
    assert align(replace(FOLLOWED, choices_digest="sha256:other"), KNOWN, LIMITS).verdict == "aligned"
    other = moved(1, 17)(replace(FOLLOWED, choices_digest="sha256:other"))
    assert align(other, KNOWN, LIMITS).verdict == "inconclusive"


# -- what ranks record


def share(rank: int = 0, step: int = 1, layer: int = 1, **changes: float) -> ComparedChoices:
    return replace(ComparedChoices(rank, step, layer, 64, 1, 1e-7, 1.0), **changes)  # type: ignore[arg-type]


WHOLE = [share(rank, step, layer) for rank in (0, 1) for step in (1, 2) for layer in LAYERS]
BOTH = {0: "sha256:f", 1: "sha256:f"}


def reasons(shares: list[ComparedChoices], choices_digests: Mapping[int, str | None]) -> list[str]:
    return choice_reasons(shares, choices_digests, LAYERS, 2, 128)


def test_whole_records_of_all_ranks_are_right() -> None:
    assert reasons(WHOLE, BOTH) == [] and reasons([], {}) == [] and reasons([], {0: None}) == []


@pytest.mark.parametrize(
    ("shares", "choices_digests", "words"),
    [
        (WHOLE[1:], BOTH, "step 1, layer 1: 64 own choices, expected 128"),
        ([*WHOLE, WHOLE[0]], BOTH, "step 1, layer 1, rank 0: recorded twice"),
        ([*WHOLE, share(0, 3)], BOTH, "step 3, layer 1: 64 own choices, expected 0"),
        ([*WHOLE, share(0, 1, 0)], BOTH, "step 1, layer 0: 64 own choices, expected 0"),
        ([share(changed=-1), *WHOLE[1:]], BOTH, "step 1, layer 1: -1 changed, margin 1e-07"),
        ([share(margin=-1e-3), *WHOLE[1:]], BOTH, "margin -0.001"),
        ([share(margin=float("nan")), *WHOLE[1:]], BOTH, "margin nan"),
        ([share(followed_gate_sum=float("inf")), *WHOLE[1:]], BOTH, "gates inf"),
        (WHOLE, {0: "sha256:f", 1: "sha256:g"}, "ranks follow different choices"),
        (WHOLE, {0: "sha256:f", 1: None}, "ranks follow different choices"),
        (WHOLE, {0: None, 1: None}, "own choices were compared, and rank 0 follows none"),
    ],
)
def test_a_damaged_record_makes_the_run_invalid(shares: Any, choices_digests: Any, words: str) -> None:
    assert words in "; ".join(reasons(shares, choices_digests))


def test_the_ranks_records_add_up_and_the_widest_margin_stays() -> None:
    router = Router(scale=2.5)
    experts = Experts(count=4, chosen=2, ffn_hidden_size=8, router=router)
    shares = [
        share(followed_gate_sum=2.5),
        share(1, margin=3e-6, layer=2, followed_gate_sum=2.5 * (1 + 1e-6)),
        share(1, 2, followed_gate_sum=2.5),
    ]
    finding = summarise_own_choices(shares, experts)
    assert finding[1][:4] == (128, 2, 3e-6, 2) and finding[1].gates == pytest.approx(1e-6)
    assert finding[2] == OwnChoices(64, 1, 1e-7, 1, 0.0)
    plain = experts.model_copy(update={"router": router.model_copy(update={"normalised": False})})
    assert summarise_own_choices(shares, plain)[1].gates == 0.0


def test_a_run_without_its_routing_is_inconclusive() -> None:
    assert verdict(lambda run: replace(run, routing={}))[0] == "inconclusive"


def test_a_layer_that_only_one_of_the_two_has_is_a_fault() -> None:
    def without(run: TrainingCurve) -> TrainingCurve:
        return replace(run, routing={s: {1: layers[1]} for s, layers in run.routing.items()})

    assert verdict(without) == ("different", "routing")


def test_in_sixteen_bits_the_routing_is_told_and_not_judged() -> None:
    limits = replace(LIMITS, routing=None, curve=1e-2)
    assert verdict(moved(500, 1), scaled(1.001, 1), limits=replace(limits, first_step=1e-2)) == ("aligned", "")
    assert verdict(moved(500, 1), scaled(1.02, 1), limits=replace(limits, first_step=1e-1)) == ("diverged", "curve")


# -- references and their noise


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    folder = tmp_path_factory.mktemp("mixture") / "20260102T030405Z_tiny_mixture_fake_fake_abcdef"
    record_run(RunPaths(folder), MIXTURES, "tiny_mixture")
    return folder, make_reference(RunPaths(folder), "the test")


def row(losses: Mapping[int, float], routing: Mapping[int, int], name: str = "row") -> NoiseRow:
    """A row of noise: the differences of the losses, and the changed choices."""
    values = [losses.get(step, 1e-7) for step in range(1, 13)]
    return NoiseRow(
        changed=f"fake 1.2.3, DP2TP1PP1, {name}", run_id=name, first_step=values[0], gradient=1e-6, curve=max(values),
        losses=tuple(values), gradients={1: {"mlp.up.weight": 1e-6}, 10: {"mlp.up.weight": 1e-2}},
        weights={"head.weight": {"norm": 1e-2}}, routing=dict(routing),
    )  # fmt: skip


def test_a_reference_holds_the_counts_and_is_read_back(promoted: tuple[Path, Reference], tmp_path: Path) -> None:
    _, reference = promoted
    assert sorted(reference.routing) == list(range(1, 13)) and all(sum(c[1]) == 128 for c in reference.routing.values())
    path = tmp_path / "reference.json"
    path.write_text(dump(reference))
    assert load(Reference, path) == reference
    assert reference_curve(reference).routing == reference.routing


def test_a_dense_reference_keeps_its_digest(promoted: tuple[Path, Reference]) -> None:
    _, reference = promoted
    content = json.loads(dump(reference.model_copy(update={"routing": {}})))
    assert content.pop("routing") == {}
    content.pop("schema")
    assert Reference.model_validate(content).fingerprint() == reference.model_copy(update={"routing": {}}).fingerprint()


def test_a_row_with_other_choices_is_no_noise(promoted: tuple[Path, Reference]) -> None:
    """An older version recorded it: its later differences would widen the limits of every run."""
    _, reference = promoted
    jumped = row({9: 1e-4, 10: 2e-4}, {9: 1, 11: 5})
    calm = row({}, {}, "a"), row({1: 2e-7}, {}, "b")
    limits = limits_from(reference.model_copy(update={"noise": (*calm, jumped)}))
    assert limits == limits_from(reference.model_copy(update={"noise": calm})) and limits.routing == FP32_CHOICE_LIMITS
    assert limits_from(reference.model_copy(update={"noise": (jumped,)})).curve is None


def test_in_sixteen_bits_a_row_is_noise_to_its_end(promoted: tuple[Path, Reference]) -> None:
    _, reference = promoted
    half = reference.model_copy(update={"precision": "bf16"})
    assert noise_of(row({9: 1e-4}, {1: 900}), half).curve[9] == 1e-4


def test_a_run_with_other_choices_becomes_no_row(promoted: tuple[Path, Reference], tmp_path: Path) -> None:
    _, reference = promoted
    run = RunPaths(tmp_path / "20260102T030405Z_tiny_mixture_fake_fake_bbbbbb")
    record_run(run, MIXTURES, "tiny_mixture")

    def jump(events: list[Event]) -> list[Event]:
        for event in events:
            if event["event"] == "experts" and event["step"] == 9:
                event["tokens"]["1"][0] += 1
                event["tokens"]["1"][1] -= 1
        return events

    edit(run.events / "rank1.jsonl", jump)
    with pytest.raises(GateFailed, match=r"bbbbbb .* other experts .*tiny_mixture"):
        add_noise(reference, run)
    (finding,) = add_noise(reference, run, "the test").noise
    assert finding.routing == {9: 1}
