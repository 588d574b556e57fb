"""Acceptance: three words by intervals, what is no evidence, and faults planted in runs and in the file of criteria."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from compared_records import record, repeats
from levelfield.compare import ratios
from levelfield.compare.acceptance import AcceptanceEvidence, PublishedSpeed, dossier, refuse_expired, sheets
from levelfield.errors import DocumentError, GateFailed, UsageError
from levelfield.measure.series import share_interval
from levelfield.report.sheets import as_markdown, as_text
from levelfield.specs.acceptance import AcceptanceCriteria, CriterionFinding, Dossier
from levelfield.specs.base import dump, load, parse
from levelfield.specs.layout import Layout
from levelfield.specs.record import RunRecord

TODAY = "2026-11-30"
SPEED = {"speed": {"at_least": 0.95, "baseline": ["base"]}}
BASE = repeats(1000, 1002, 998, first=50)


def criteria(asked: dict[str, Any], nodes: int = 1, **changes: Any) -> AcceptanceCriteria:
    of = {"case": "gpt", "framework": "torch", "chip": "X1", "scale": "smoke", "nodes": nodes, "devices": 1}
    content = {"title": "Rack 7", "valid_until": "2027-03-31", "accepted_days": 90, "of": of, "criteria": asked}
    return parse(AcceptanceCriteria, {"schema": "levelfield.acceptance/1", **content, **changes}, "criteria.yaml")


def judged(asked: dict[str, Any], runs: list[RunRecord], base: list[RunRecord] = BASE, **changes: Any) -> Dossier:
    return dossier(criteria(asked, **changes), AcceptanceEvidence(runs, base if "speed" in asked else ()), TODAY)


def only(found: Dossier) -> CriterionFinding:
    [finding] = found.findings
    return finding


def published(**changes: Any) -> PublishedSpeed:
    row = {"value": 1000.0, "how": "printed", "case": "gpt", "precision": "fp32", "nodes": 1, "devices": 1}
    return PublishedSpeed(**{"name": "set: row", **row, **changes})  # type: ignore[arg-type]


def test_six_percent_below_is_refused_and_as_fast_is_accepted() -> None:
    slow = judged(SPEED, repeats(940, 941, 939))
    assert slow.word == "refused" and only(slow).value == pytest.approx(0.94, abs=1e-4)
    assert only(slow).runs == tuple(r.run_id for r in repeats(1, 1, 1)) and len(only(slow).baseline) == 3
    assert judged(SPEED, repeats(1000, 1001, 999)).word == "accepted"


def test_a_shortfall_within_the_noise_is_not_decided_and_says_how_many_more_runs_decide() -> None:
    found = only(judged(SPEED, repeats(930, 950, 940)))
    assert found.word == "not decided" and found.more_runs is not None
    more = found.more_runs
    side, base = (ratios.SideValues(v) for v in ((930, 950, 940), (1000, 1002, 998)))
    assert more == ratios.more_runs(side, base, 0.95) and f"{more} more run(s) of each kind decide it" in found.sentence
    alike = [930, 950, 940] * ((more + 3 + 2) // 3)
    assert (
        judged(SPEED, repeats(*alike), repeats(*[1000, 1002, 998] * len(alike), first=60)[: len(alike)]).word
        == "refused"
    )
    assert only(judged(SPEED, repeats(940, 941))).more_runs == 1, "a third run shows its noise"


def spread_by(deviation: float, runs: int, middle: float) -> ratios.SideValues:
    """Values whose logarithms have exactly this mean and standard deviation."""
    logs = np.linspace(-1, 1, runs)
    return ratios.SideValues(tuple(middle * np.exp(logs / np.std(logs, ddof=1) * deviation)))


@pytest.mark.parametrize("runs", [3, 4, 8])
def test_exactly_so_many_more_runs_decide(runs: int) -> None:
    more = ratios.more_runs(spread_by(0.01, runs, 0.94), spread_by(0.01, runs, 1.0), 0.945)
    assert more is not None and more > 1
    for n, is_below in ((runs + more - 1, False), (runs + more, True)):
        high = ratios.ratio(spread_by(0.01, n, 0.94), spread_by(0.01, n, 1.0)).high
        assert high is not None and (high < 0.945) is is_below, n


def test_at_the_limit_no_number_of_runs_decides() -> None:
    found = only(judged(SPEED, repeats(949, 950, 951)))
    assert found.word == "not decided" and found.more_runs is None and "it is at the limit" in found.sentence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"case": "llama"}, "found case llama, expected gpt"),
        ({"scale": "full"}, "found scale full, expected smoke"),
        ({"framework": "jax"}, "found framework jax, expected torch"),
        ({"chip": "Y1"}, "found chip Y1, expected X1"),
        ({"nodes": 2, "devices": 2, "layout": Layout(data=2)}, "found 2 nodes, expected at most 1"),
        ({"devices": 2, "layout": Layout(data=2)}, "found devices of a node 2, expected 1"),
        ({"evidence": "tampered", "evidence_reason": "events differ"}, "tampered: events differ"),
        ({"evidence": "unsealed"}, "unsealed"),
        ({"word": "oom", "failure": "oom"}, "oom"),
        ({"verdict": "different"}, "its training is different"),
        ({"tokens_per_second_per_device": 2000.0}, "in its result.json"),
        ({"tokens_per_second_per_device": None}, "in its result.json"),
        ({"began": "2099-01-01T00:00:00+00:00"}, "expected one that is past"),
        ({"began": "some day"}, "expected one that is past"),
        ({"began": "2026-08-01T00:00:00+00:00"}, "by accepted_days it counted until 2026-10-30"),
    ],
)
def test_what_is_no_evidence_is_left_out_by_name_and_never_passes(change: dict[str, Any], said: str) -> None:
    runs = [record(n, 1000.0, **change) for n in (1, 2, 3)]
    found = judged(SPEED, runs)
    assert found.word == "not decided" and found.runs == {} and found.expires is None
    assert said in found.left_out[0].reason and len(found.left_out) == 3


def test_runs_of_before_a_repair_do_not_count() -> None:
    found = judged(SPEED, repeats(1000, 1001, 999), runs_since="2026-11-23")
    assert found.word == "not decided" and "before runs_since 2026-11-23" in found.left_out[0].reason


def test_a_figure_that_is_no_number_decides_nothing() -> None:
    nan = record(1).model_copy(update={"tokens_per_second_per_device": float("nan")})
    assert "is nan" in judged(SPEED, [nan]).left_out[0].reason
    assert (
        only(
            judged(
                SPEED,
                repeats(1000, 1001, 999),
                [record(50 + n).model_copy(update={"tokens_per_second_per_device": float("nan")}) for n in range(3)],
            )
        ).word
        == "not decided"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": "full"}, "scale full / smoke"),
        ({"work": "sha256:" + "9" * 64}, "work sha256:999999999999 / sha256:111111111111"),
        ({"devices": 2, "layout": Layout(data=2)}, "1 node(s), 2 device(s) / 1 node(s), 1 device(s)"),
        ({"evidence": "tampered"}, "valid and sealed"),
        ({"verdict": "diverged"}, "training diverged / yes"),
    ],
)
def test_a_baseline_that_is_not_comparable_decides_nothing(change: dict[str, Any], said: str) -> None:
    found = only(judged(SPEED, repeats(1000, 1001, 999), repeats(1000, 1002, 998, first=50, **change)))
    assert found.word == "not decided" and said in found.sentence, found.sentence


def test_a_wrong_unit_passes_nothing() -> None:
    assert "wrong unit" in only(judged(SPEED, repeats(1e6, 1.001e6, 0.999e6))).sentence
    kilo = only(judged({"joules_per_token": {"at_most": 500}}, repeats(1000, 1001, 999)))
    assert kilo.word == "not decided" and "wrong unit" in kilo.sentence


def test_a_run_is_not_its_own_baseline() -> None:
    with pytest.raises(UsageError, match="among the runs and in its own baseline"):
        judged(SPEED, BASE)


def test_runs_of_two_series_are_no_side() -> None:
    mixed = [*repeats(1000, 1001, 999), record(9, micro_batch=4)]
    assert "found micro_batch 8" in only(judged(SPEED, mixed)).sentence


def test_a_published_row_is_a_baseline_of_full_scale_only() -> None:
    asked = criteria({"speed": {"at_least": 0.95, "published": {"set": "s", "row": "r"}}}, nodes=1)
    full = asked.model_copy(update={"of": asked.of.model_copy(update={"scale": "full"})})
    runs = repeats(940, 941, 939, scale="full")

    def word(of: AcceptanceCriteria, own: list[RunRecord], **row: Any) -> CriterionFinding:
        return only(dossier(of, AcceptanceEvidence(own, published=published(**row)), TODAY))

    assert word(full, runs).word == "refused" and "printed" in word(full, runs).sentence
    assert word(full, runs, value=900.0).word == "accepted"
    assert "scale full / smoke" in word(asked, repeats(1000, 1001, 999)).sentence
    for row in ({"value": None, "how": "no throughput: oom"}, {"case": "llama"}, {"nodes": 2}, {"precision": "bf16"}):
        assert word(full, runs, **row).word == "not decided", row


def nodes(*rates: float, runs: int = 3) -> list[RunRecord]:
    return [
        record(10 * node + run, rate * (1 + run / 1000), node=f"sha256:{node}{'0' * 63}")
        for node, rate in enumerate(rates, start=1)
        for run in range(runs)
    ]


SPREAD = {"node_spread": {"at_most": 0.05, "nodes": 4}}


def test_the_slow_one_of_four_nodes_is_named_by_runs_of_its_own() -> None:
    found = only(judged(SPREAD, nodes(1000, 1002, 900, 999)))
    assert found.word == "refused" and found.nodes == ("sha256:300000000000",)
    assert found.value == pytest.approx(0.9, abs=0.01)
    assert judged(SPREAD, nodes(1000, 1002, 995, 999)).word == "accepted"


def test_a_node_that_was_not_measured_or_not_often_enough_decides_nothing() -> None:
    three = only(judged(SPREAD, nodes(1000, 1002, 999)))
    assert three.word == "not decided" and "3 node(s) have runs of their own" in three.sentence
    once = only(judged(SPREAD, nodes(1000, 1002, 900, 999, runs=1)))
    assert once.word == "not decided" and once.more_runs == 2
    unknown = [run.model_copy(update={"node": "unknown"}) if run.node.startswith("sha256:4") else run
               for run in nodes(1000, 1000, 1000, 1000)]  # fmt: skip
    assert only(judged(SPREAD, unknown)).word == "not decided"


def over_four(number: int, *stragglers: dict[str, Any], unchecked: str | None = None) -> RunRecord:
    run = record(number, nodes=4, devices=4, layout=Layout(data=4))
    hosts = [{"node": node, "name": f"rack-{node}"} for node in range(4)]
    pace = {"steps": 20, "stragglers": list(stragglers), "unchecked": unchecked}
    return run.model_copy(update={"result": {**run.result, "pace": pace, "machines": hosts}})


def late(name: str, rank: int, excess: float) -> dict[str, Any]:
    return {"name": name, "ranks": [rank], "excess": excess}


def test_the_slow_one_of_four_nodes_is_named_by_who_waited() -> None:
    slow = only(judged(SPREAD, [over_four(n, late("node2", 2, 0.2)) for n in (1, 2, 3)], nodes=4))
    assert slow.word == "refused" and slow.nodes == ("node2 (rack-2)",)
    assert slow.value == pytest.approx(1 / 6), "of the speed, not of the time"
    rank = only(judged(SPREAD, [over_four(1, late("rank 3", 3, 0.2))], nodes=4))
    assert rank.nodes == ("rank 3 of node3 (rack-3)",)
    assert judged(SPREAD, [over_four(1), over_four(2)], nodes=4).word == "accepted"
    once = [over_four(1, late("node2", 2, 0.2)), over_four(2), over_four(3)]
    assert only(judged(SPREAD, once, nodes=4)).word == "not decided", "one run of three"
    assert only(judged(SPREAD, [over_four(1, unchecked="few steps")], nodes=4)).word == "not decided"
    fine = {"node_spread": {"at_most": 0.01, "nodes": 4}}
    assert only(judged(fine, [over_four(1)], nodes=4)).word == "not decided", "finer than who waited can show"


def test_scaling_is_of_the_most_devices_against_the_fewest() -> None:
    asked = {"scaling": {"at_least": 0.9}}
    four = {"nodes": 4, "devices": 4, "layout": Layout(data=4)}
    one = repeats(1000, 1001, 999)
    assert judged(asked, [*one, *repeats(950, 951, 949, first=10, **four)], nodes=4).word == "accepted"
    assert judged(asked, [*one, *repeats(850, 851, 849, first=10, **four)], nodes=4).word == "refused"
    two = {"nodes": 2, "devices": 2, "layout": Layout(data=2)}
    fewer = only(judged(asked, [*one, *repeats(1000, 1001, 999, first=10, **two)], nodes=4))
    assert fewer.word == "not decided" and "no run that counts on 4 node(s)" in fewer.sentence
    assert "at least two numbers of devices" in only(judged(asked, one, nodes=4)).sentence
    other = repeats(950, 951, 949, first=10, corpus="sha256:" + "8" * 64, **four)
    assert only(judged(asked, [*one, *other], nodes=4)).word == "not decided"


def test_alignment_energy_and_preflight() -> None:
    asked = {"aligned": True, "joules_per_token": {"at_most": 0.55}, "preflight": True}

    def words(said: str | None = "in line: 1 node(s)", **changes: Any) -> list[str]:
        runs = [
            r.model_copy(update={"result": {**r.result, "preflight": said}})
            for r in repeats(1, 1.001, 0.999, **changes)
        ]
        return [finding.word for finding in judged(asked, runs).findings]

    assert words() == ["accepted"] * 3
    assert words(verdict="different") == ["refused", "not decided", "not decided"]
    assert words(verdict="consistent")[0] == "not decided"
    assert words(joules=0.6)[1] == "refused" and words(joules=None)[1] == "not decided"
    noisy = [record(n, joules=joules) for n, joules in enumerate((0.5, 0.55, 0.58), start=1)]
    assert only(judged({"joules_per_token": {"at_most": 0.55}}, noisy)).word == "not decided"
    mixed = [*repeats(1, 1.001, 0.999, joules=0.3), *repeats(1, 1.001, 0.999, first=10, micro_batch=4, joules=0.6)]
    found = only(judged({"joules_per_token": {"at_most": 0.55}}, mixed))
    assert found.word == "not decided" and "found micro_batch" in found.sentence
    assert words("out of line: node0: hash is 40% below")[2] == "refused"
    assert (
        words(None)[2] == words("not compared: 1 node(s)")[2] == words("preflight.json is damaged")[2] == "not decided"
    )


def test_success_counts_every_run_but_those_that_the_user_ended() -> None:
    def share(good: int, bad: int, at_least: float, **changes: Any) -> CriterionFinding:
        runs = [*repeats(*[1000.0] * good), *(record(50 - n, **changes) for n in range(bad))]
        return only(judged({"success": {"at_least": at_least}}, runs))

    failed = {"word": "failed", "failure": "hang"}
    assert share(14, 0, 0.75).word == "accepted" and share(5, 5, 0.9, **failed).word == "refused"
    few = share(3, 0, 0.75)
    assert few.word == "not decided" and few.more_runs == 10
    assert share_interval(13, 13)[0] >= 0.75 > share_interval(12, 12)[0]
    assert share(5, 5, 0.9, evidence="tampered").word == "refused", "what was changed is no success"
    assert share(3, 2, 0.5, word="failed", failure="interrupted").value == 1.0


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0), (5, 10, 0.1871, 0.8129), (95, 100, 0.8872, 0.9836)],
)
def test_the_interval_of_a_share_is_clopper_and_pearsons(successes: int, trials: int, low: float, high: float) -> None:
    assert share_interval(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_a_criterion_without_runs_is_not_decided() -> None:
    every = {**SPEED, **SPREAD, "scaling": {"at_least": 0.9}, "aligned": True, "joules_per_token": {"at_most": 1},
             "success": {"at_least": 0.5}, "preflight": True}  # fmt: skip
    found = judged(every, [])
    assert [finding.word for finding in found.findings] == ["not decided"] * 7 and found.word == "not decided"


def test_one_refused_criterion_refuses_and_one_undecided_leaves_it_open() -> None:
    both = {**SPEED, "aligned": True}
    assert judged(both, repeats(940, 941, 939, verdict="consistent")).word == "refused"
    assert judged(both, repeats(1000, 1001, 999, verdict="consistent")).word == "not decided"
    assert judged(both, repeats(1000, 1001, 999)).word == "accepted"


def test_a_dossier_ends_so_many_days_after_its_oldest_run_and_reads_back(tmp_path: Path) -> None:
    old = record(7, began="2026-10-01T00:00:00+00:00")
    found = judged(SPEED, [*repeats(1000, 1001, 999), old])
    assert found.expires == "2026-12-30"
    (path := tmp_path / "dossier.json").write_text(dump(found))
    assert load(Dossier, path) == found
    refuse_expired("dossier.json", found.expires, "2026-12-30")
    for last in (found.expires, None):
        with pytest.raises(GateFailed, match=r"dossier\.json"):
            refuse_expired("dossier.json", last, "2026-12-31")
    assert judged(SPEED, [old, *repeats(1000, 1001, 999)]) == found, "the order of the names is no evidence"


def test_the_text_fits_80_columns_and_markdown_escapes() -> None:
    found = judged({**SPEED, **SPREAD}, nodes(1000, 1002, 900, 999), title="Rack | 7")
    text = as_text(sheets(found))
    assert max(map(len, text.splitlines())) <= 80 and "REFUSED, until 2027-02-20" in text
    assert "Rack \\| 7" in as_markdown(sheets(found))


WRONG = [
    ({"criteria": {}}, "found no criterion, expected at least one of"),
    ({"criteria": {"speeed": {"at_least": 0.95}}}, "nearest: speed"),
    ({"criteria": {"speed": {"at_least": 95, "baseline": ["a"]}}}, "found 95, expected a part"),
    ({"criteria": {"speed": {"at_least": float("nan"), "baseline": ["a"]}}}, "speed.at_least"),
    ({"criteria": {"speed": {"at_least": 0.95}}}, "expected exactly one of them"),
    ({"criteria": {"speed": {"at_least": 0.95, "baseline": ["*"]}}}, "speed.baseline"),
    ({"criteria": {"speed": {"at_least": 0.95, "baseline": ["/etc/x"]}}}, "speed.baseline"),
    ({"criteria": {"speed": {"at_least": 0.95, "baseline": ["a"] * 1001}}}, "speed.baseline"),
    ({"criteria": {"node_spread": {"at_most": 5, "nodes": 4}}}, "found 5, expected a part"),
    ({"criteria": {"joules_per_token": {"at_most": -1}}}, "joules_per_token.at_most"),
    ({"criteria": {"aligned": False}}, "criteria.aligned"),
    ({"valid_until": "2027-02-30"}, "found '2027-02-30', expected a day"),
    ({"valid_until": 20270331}, "valid_until"),
    ({"accepted_days": 0}, "accepted_days"),
    ({"schema": "levelfield.acceptance/2"}, "expected 'levelfield.acceptance/1'"),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_a_wrong_file_is_named_with_its_key(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "criteria.yaml"
    content = {
        "schema": "levelfield.acceptance/1",
        **criteria(SPEED).model_dump(mode="json", exclude_none=True),
        **change,
    }
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(DocumentError) as error:
        load(AcceptanceCriteria, path)
    assert said in str(error.value) and "criteria.yaml" in str(error.value)


def test_an_empty_file_is_no_criteria(tmp_path: Path) -> None:
    (path := tmp_path / "criteria.yaml").write_text("")
    with pytest.raises(DocumentError, match="found NoneType, expected a mapping"):
        load(AcceptanceCriteria, path)


def test_too_many_runs_are_refused() -> None:
    many = [record(n).model_copy(update={"run_id": f"run{n}"}) for n in range(1001)]
    with pytest.raises(UsageError, match="found 1,001 runs"):
        judged({"aligned": True}, many)


def test_today_is_a_day_in_utc() -> None:
    from levelfield.cli.acceptance_command import today

    assert today() == datetime.now(timezone.utc).date().isoformat()
