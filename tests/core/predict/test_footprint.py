"""The expected memory against the closed forms of its sources and against published measurements."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from levelfield.measure.parameter_counts import count_parameters
from levelfield.predict.activations import layer_bytes
from levelfield.predict.footprint import Footprint, expected_memory, stage_footprints
from levelfield.predict.machines import Link, MachineRates
from levelfield.predict.pass_timing import rank_work
from levelfield.predict.setup import TrainingSetup, training_setup
from levelfield.predict.timing import weight_exchange
from levelfield.specs.base import load
from levelfield.specs.case import Case, Work
from levelfield.specs.constants import MemoryModel, Pace
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.tuning import Tuning

CASES = Path(__file__).resolve().parents[3] / "configs" / "cases"
GIB = 2**30


def footprint(
    case: str, layout: str = "DP1", kind: str = "nvidia", precision: str = "bf16", **tuning: Any
) -> Footprint:
    work, parsed = in_precision(case, precision), parse_layout(layout).layout
    return expected_memory(training_setup(work, Tuning(layout=parsed, **tuning), on_host=kind == "cpu"))


def in_precision(case: str, precision: str) -> Work:
    work = load(Case, CASES / f"{case}.yaml").work("full")
    return work.model_copy(update={"training": work.training.model_copy(update={"precision": precision})})


def count(case: str) -> int:
    case_document = load(Case, CASES / f"{case}.yaml")
    return count_parameters(case_document.model, case_document.training.sequence_length).total


def test_states_of_one_device_are_eighteen_bytes_a_parameter() -> None:
    memory, n = footprint("gpt3_6.7B"), count("gpt3_6.7B")
    assert (memory.weights, memory.gradients, memory.optimizer_states) == (6 * n, 4 * n, 8 * n)
    assert footprint("gpt3_6.7B", precision="fp32").weights == 4 * n
    assert sum(memory._asdict().values()) == memory.total


def test_zero_shards_what_its_stage_says() -> None:
    n = count("gpt3_6.7B")
    parts = {stage: footprint("gpt3_6.7B", f"TP1PP1SH{stage}SP8") for stage in (1, 2, 3)}
    assert all(p.optimizer_states == pytest.approx(n, rel=1e-6) for p in parts.values())
    assert [p.gradients for p in parts.values()] == [4 * n, n // 2, n // 2]
    assert parts[3].weights == n // 2 and parts[2].weights == n // 2 + 2 * n
    assert parts[1].total > parts[2].total > parts[3].total


def per_layer(layout: str = "DP1", **tuning: Any) -> float:
    """Activation bytes of a layer over s b h, for a GPT in 16 bits with dropout, the embedding's part left out."""
    memory = footprint("gpt3_6.7B", layout, **tuning)
    unit = tuning.get("micro_batch", 1) * 2048 * 4096
    split = 2 if "+seq" in layout else 1
    return (memory.activations - 3 * unit / split) / 32 / unit


def test_activations_are_korthikantis_34_sbh() -> None:
    assert per_layer() == 34
    assert per_layer(micro_batch=4) == 34
    assert per_layer("TP2") == 10 + 24 / 2
    assert per_layer("TP2+seq") == 34 / 2


def test_recomputation_keeps_less() -> None:
    none, selective, full = (footprint("gpt3_6.7B", recompute=r).activations for r in ("none", "selective", "full"))
    assert none > selective > full
    unit = 2048 * 4096
    assert full == (32 * 2 + 34 + 3) * unit


def test_the_first_layers_keep_their_input_and_the_others_all() -> None:
    """2 and 34 s b h; nothing for the layer at hand, as the last layers have given back as much before it."""
    unit = 2048 * 4096
    for layers in (1, 12, 31):
        activations = footprint("gpt3_6.7B", recompute="full", recompute_layers=layers).activations
        assert activations == (layers * 2 + (32 - layers) * 34 + 3) * unit
    whole = footprint("gpt3_6.7B", recompute="full")
    assert footprint("gpt3_6.7B", recompute="full", recompute_layers=32) == whole


def test_each_chunk_of_a_stage_has_first_layers() -> None:
    """Of four layers of a stage two chunks repeat one each: 5 passes of 4 wait on the first stage, and 7 embeddings."""
    unit = 2048 * 4096
    plan: dict[str, Any] = {"recompute": "full", "recompute_layers": 1, "virtual_pipeline": 2, "micro_batch": 1}
    activations = footprint("gpt3_6.7B", "PP8", **plan).activations
    passes = 8 + 15  # of half a stage: the second chunk's, and the first one's
    assert activations == (passes * (2 * 2 + 2 * 34) // 2 + 15 * 3) * unit
    uneven = footprint("gpt3_6.7B", "PP5", recompute="full", recompute_layers=5, micro_batch=1).activations
    assert uneven == 5 * (5 * 2 + 2 * 34 + 3) * unit, "the first two stages have seven layers"


def test_scores_are_kept_only_on_the_host_with_dropout() -> None:
    host, chip = (footprint("gpt3_6.7B", kind=kind).activations for kind in ("cpu", "nvidia"))
    assert host - chip == 32 * 5 * 32 * 2048**2
    assert footprint("llama3_8b", kind="cpu").activations == footprint("llama3_8b").activations


def test_the_first_pipeline_stage_holds_most_micro_batches() -> None:
    one, four = footprint("gpt3_6.7B", micro_batch=1), footprint("gpt3_6.7B", "PP4", micro_batch=1)
    unit = 2048 * 4096
    assert four.activations == one.activations + 3 * 3 * unit
    assert four.logits == 0 and four.gradients < one.gradients / 3


def test_interleaving_keeps_more_on_the_first_stage() -> None:
    """1 + (p - 1)/(p v) times the layers' activations: Korthikanti et al., 2022, section 4.2.3."""
    plain, two, four = (
        footprint("llama3_8b", "PP4", micro_batch=1, virtual_pipeline=chunks).activations for chunks in (1, 2, 4)
    )
    embedding = 8192 * 4096 * 2  # of a micro-batch; 4 wait on the first chunk in 1F1B, 7 in rounds
    layers = plain - 4 * embedding
    assert two - 7 * embedding == pytest.approx(layers * (1 + 3 / 8))
    assert four - 7 * embedding == pytest.approx(layers * (1 + 3 / 16))


@pytest.mark.parametrize(("chunks", "messages"), [(1, 2 * 256), (2, 4 + 2 * 2 + 1)])
def test_a_stage_receives_all_of_a_step_or_keeps_what_waiting_passes_sent(chunks: int, messages: int) -> None:
    """The second of four stages, which has two neighbours: 256 micro-batches come from either side."""
    layout = parse_layout("PP4").layout
    tuning = Tuning(layout=layout, micro_batch=1, virtual_pipeline=chunks)
    work = changed_batch(in_precision("llama3_8b", "bf16"), 256)
    plain, receiving = (
        stage_footprints(
            training_setup(work, tuning, on_host=False, memory_model=MemoryModel(receives_all=receives_all))
        )[1]
        for receives_all in (False, True)
    )
    assert receiving.buffers - plain.buffers == messages * 8192 * 4096 * 2


def changed_batch(work: Work, batch: int) -> Work:
    return work.model_copy(update={"training": work.training.model_copy(update={"global_batch": batch})})


def test_what_a_framework_keeps_beyond_the_analyses() -> None:
    """Each of its constants moves the part that it is about, by what it says."""
    work, layout = in_precision("gpt3_6.7B", "bf16"), parse_layout("TP2PP1SH2SP4").layout
    tuning, unit = Tuning(layout=layout, micro_batch=1), 2048 * 4096

    def memory(kind: str = "nvidia", **fields: Any) -> Footprint:
        return expected_memory(training_setup(work, tuning, kind == "cpu", MemoryModel(**fields)))

    plain, n = memory(), memory().optimizer_states // 2  # states are sharded over 4: 2 n / 4 x 4 bytes
    assert memory(gradient_bytes=2).gradients == plain.gradients // 2
    assert memory(logit_bytes=10).logits == 10 * 2048 * 50304 // 2
    assert memory(tensor_parallel_copies=2).activations - plain.activations == 32 * 2 * 2 * unit
    assert memory(score_bytes=5).activations - plain.activations == 32 * 5 * 32 * 2048**2 // 2
    assert memory(reserve_bytes=7).reserve == 7 and memory("cpu", host_process_bytes=7).reserve == 7
    assert memory("cpu", host_process_bytes=0, host_sharding_copies=3).buffers == 3 * 2 * n
    assert (
        memory(logit_bytes=10, gathered_logit_bytes=4).logits == (10 // 2 + 4 + 2 * 2) * 2048 * 50304
    )  # parts, joined
    assert memory(norm_bytes=8).activations - plain.activations == 32 * 2 * 8 * unit
    passing = plain.activations + plain.logits + plain.buffers
    assert memory(fragmentation=0.1).reserve - plain.reserve == int(0.1 * passing)
    embedding = 4 * 50304 * 4096 // 2
    assert memory(stream_pools=True).reserve - plain.reserve == embedding, "reduced gradients are counted as gradients"
    assert memory("cpu", stream_pools=True).reserve == memory("cpu").reserve
    assert memory(exchange_bytes=7).buffers - plain.buffers == 7 and memory("cpu", exchange_bytes=7).buffers == 0
    assert memory(exchange_bytes=16 * 10**9).buffers == 4 * n, (
        "no more than the gradients, here of each second parameter"
    )
    assert memory(master_bytes=0, state_bytes=4).optimizer_states == plain.optimizer_states // 2
    assert plain.weights - memory(master_bytes=0).weights == n
    tuning = Tuning(layout=parse_layout("DP4TP2+seq").layout, micro_batch=1)
    gathered, again = (memory(keeps_gathered_inputs=whole_inputs).activations for whole_inputs in (True, False))
    assert gathered - again == 32 * 2 * 2 * unit // 2, "of two inputs a layer the other rank's half, in 16 bits"
    pools, whole = memory(stream_pools=True).reserve - memory().reserve, memory().gradients
    assert pools == whole + embedding, "DTensor's parameters are reduced by FSDP's streams"
    tuning = Tuning(layout=parse_layout("DP4TP2SH1SP4+seq").layout, micro_batch=1)
    assert memory(stream_pools=True).reserve - memory().reserve == whole // 4 + embedding
    tuning = Tuning(layout=parse_layout("DP4").layout, micro_batch=1)
    assert memory(stream_pools=True).reserve == memory().reserve
    tuning = Tuning(layout=parse_layout("DP4SH3SP4").layout, micro_batch=1)
    whole = memory().optimizer_states // 2 * 4  # two moments of 4 bytes over 4 ranks
    assert memory(sharded_copy=True).weights - memory().weights == 2 * (whole // 4) // 4


def test_primary_weights_in_fp8_have_no_16_bit_copy_and_are_gathered_in_fp8() -> None:
    def setup(precision: str, primary: bool) -> TrainingSetup:
        tuning = Tuning(layout=parse_layout("DP4SH1SP4").layout, micro_batch=1)
        return training_setup(
            in_precision("llama3_8b", precision), tuning, False, MemoryModel(fp8_primary_weights=primary)
        )

    plain, primary = (setup("fp8", switch) for switch in (False, True))
    in_layers = count_parameters(plain.model, plain.training.sequence_length).in_layers
    assert expected_memory(plain).weights - expected_memory(primary).weights == 2 * in_layers
    assert expected_memory(setup("bf16", True)) == expected_memory(setup("bf16", False))
    machine, pace = MachineRates(1e15, 2e15, 1e12, Link(0.0, 1e9), None, 4), Pace(overlap=0, communication_efficiency=1)
    (gather, reduce, _), (fp8_gather, fp8_reduce, _) = (
        weight_exchange(rank_work(s, machine, pace)).messages[0] for s in (plain, primary)
    )
    assert gather - fp8_gather == pytest.approx(3 / 4 * in_layers / 1e9) and reduce == fp8_reduce


def test_selective_recomputation_keeps_queries_and_keys_before_their_norms_only() -> None:
    selective = footprint("qwen3_8b", recompute="selective").activations
    work = in_precision("qwen3_8b", "bf16")
    without = work.model_copy(update={"model": work.model.model_copy(update={"query_key_norm": False})})
    tuning = Tuning(layout=parse_layout("DP1").layout, recompute="selective")
    plain = expected_memory(training_setup(without, tuning, on_host=False)).activations
    heads = (32 + 8) * 128 * 2 * 4096  # queries and keys of one layer: only those that are computed again are more
    assert selective - plain == heads


def test_rotated_queries_and_keys_come_on_top_where_the_values_keep_the_whole_product() -> None:
    def more(case: str) -> int:
        work, tuning = in_precision(case, "bf16"), Tuning(layout=parse_layout("TP2+seq").layout, micro_batch=1)
        keeping, plain = (MemoryModel(keeps_projections=keeps) for keeps in (True, False))
        return (
            expected_memory(training_setup(work, tuning, False, keeping)).activations
            - expected_memory(training_setup(work, tuning, False, plain)).activations
        )

    assert more("llama3_8b") == 32 * 8192 * (32 + 8) * 128 * 2 // 2, "32 layers, on one of two tensor ranks, in 16 bits"
    assert more("qwen3_8b") == 0, "what is kept before the norms of queries and keys is this product"
    assert more("gpt3_6.7B") == 0, "nothing is rotated"


@pytest.mark.parametrize("keeps", ["products", "all but scores"])
@pytest.mark.parametrize("case", ["gpt3_6.7B", "llama3_8b"])
def test_selective_recomputation_never_needs_more_than_none(case: str, keeps: str) -> None:
    work = in_precision(case, "bf16")
    for micro_batch, again in product((1, 4), (0, 0.4)):
        model = MemoryModel(selective_keeps=keeps, selective_recomputes=again)
        none, selective = (
            expected_memory(training_setup(work, Tuning(micro_batch=micro_batch, recompute=how), False, model)).total
            for how in ("none", "selective")
        )
        assert selective <= none


def test_fp8_keeps_inputs_in_one_byte_and_weights_twice_more() -> None:
    tuning = Tuning(layout=Layout())
    sixteen, eight = (
        expected_memory(training_setup(in_precision("llama3_8b", precision), tuning, on_host=False))
        for precision in ("bf16", "fp8")
    )
    layers = 32 * 218_112_000
    assert eight.weights - sixteen.weights == 2 * layers
    # two norms' outputs, the heads' output and the MLP's last input
    assert sixteen.activations - eight.activations == 32 * 8192 * (2 * 4096 + 4096 + 14336)


@pytest.mark.parametrize(("layout", "layers"), [("PP4", [8, 8, 8, 8]), ("PP3", [11, 11, 10]), ("PP5", [7, 7, 6, 6, 6])])
def test_each_stage_copies_the_weights_of_its_own_layers_for_fp8(layout: str, layers: list[int]) -> None:
    sixteen, eight = (
        stage_footprints(
            training_setup(
                in_precision("llama3_8b", precision), Tuning(layout=parse_layout(layout).layout), on_host=False
            )
        )
        for precision in ("bf16", "fp8")
    )
    copies = [fp8.weights - bf16.weights for bf16, fp8 in zip(sixteen, eight, strict=True)]
    assert copies == [2 * 218_112_000 * count for count in layers]


@pytest.mark.parametrize(("case", "expected"), [("llama3_8b", 5), ("gpt3_6.7B", 4)])
def test_torch_keeps_each_products_input_in_8_bits(case: str, expected: int) -> None:
    """Also where several products have the same input, in place of two inputs; and attention's output in 16 bits."""

    def layer(precision: str, by_product: bool) -> int:
        model = MemoryModel(inputs_by_product=by_product)
        return layer_bytes(training_setup(in_precision(case, precision), Tuning(layout=Layout()), False, model)).whole

    work = in_precision(case, "fp8")
    state = work.training.sequence_length * work.model.hidden_size
    assert layer("fp8", True) - layer("fp8", False) == (expected - 2 + 2) * state
    assert layer("bf16", True) == layer("bf16", False)


def test_logits_are_made_in_chunks() -> None:
    vocabulary, hidden = 128256, 4096
    logits = footprint("llama3_8b").logits
    assert logits == 2 * 1408 * vocabulary + 2**27 + 4 * vocabulary * hidden + 2 * 8192 * hidden  # 6 chunks of 11 tiles
    assert footprint("llama3_8b", "TP2").logits < logits


@pytest.mark.parametrize(
    ("case", "layout", "micro_batch", "recompute", "published_gib"),
    [
        ("gpt3_6.7B", "TP1PP1SH2SP8", 4, "none", 66.27),
        ("gpt3_6.7B", "TP2PP1SH1SP4", 4, "none", 54.65),
        ("gpt3_6.7B", "TP2PP1SH2SP4", 4, "none", 49.46),
        ("gpt3_6.7B", "TP2PP4SH1SP1", 4, "none", 46.77),
        ("gpt3_13B", "TP2PP1SH2SP4", 2, "full", 48.54),
        ("gpt3_13B", "TP2PP4SH1SP1", 4, "full", 35.84),
    ],
)
def test_published_measurements_of_another_framework_lie_near(
    case: str, layout: str, micro_batch: int, recompute: str, published_gib: float
) -> None:
    """FlagPerf's Paddle runs on A100-80G: other copies and buffers, so a quarter apart is agreement."""
    memory = footprint(case, layout, precision="fp16", micro_batch=micro_batch, recompute=recompute)
    assert memory.total / GIB == pytest.approx(published_gib, rel=0.25)


def test_llama3_8b_does_not_fit_one_card_and_fits_eight() -> None:
    assert footprint("llama3_8b", micro_batch=1).total > 141e9
    assert footprint("llama3_8b", "TP1PP1SH3SP8", recompute="selective").total < 80 * GIB


def test_layouts_never_need_more_than_one_device() -> None:
    whole = footprint("llama3_8b").total
    for layout in ("TP2", "TP8", "PP2", "PP8", "TP2PP1SH2SP4", "TP1PP1SH3SP8"):
        assert footprint("llama3_8b", layout).total < whole
