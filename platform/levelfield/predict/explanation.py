"""The arithmetic behind a row of the plan: every term with its numbers and the source of its formula.

Each `arithmetic` is an expression that a calculator evaluates to the term, in bytes or seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from levelfield.predict.activations import layer_bytes, waiting_passes
from levelfield.predict.footprint import (
    RankParameters,
    context_buffers,
    gathered_logit_bytes,
    stage_footprints,
    stage_parameters,
)
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion
from levelfield.predict.operations import (
    ATTENTION_BACKWARD_FACTOR,
    BACKWARD_FACTOR,
    experts_forward_cost,
    layer_forward_cost,
)
from levelfield.predict.pass_timing import attention_kernel, exchanged_bytes, rank_slice, traffic_bytes
from levelfield.predict.setup import TrainingSetup, training_setup
from levelfield.predict.timing import UPDATE_BYTES
from levelfield.specs.constants import Pace

ZERO_SOURCE = "Rajbhandari et al., 2020, section 5"
ACTIVATIONS_SOURCE = "Korthikanti et al., 2022, section 4"
PIPELINE_SOURCE = "Narayanan et al., 2021, section 2.2"
BACKWARD_INPUTS = "everything that the backward pass reads"


@dataclass(frozen=True)
class Term:
    """One part of a row."""

    part: str
    value: float  # in bytes or seconds
    arithmetic: str
    words: str  # what the numbers of the arithmetic mean
    source: str  # of the formula


def memory_terms(question: LayoutQuestion, row: LayoutEstimate) -> list[Term]:
    """Return the bytes on a rank of the stage that needs most, by part."""
    s = training_setup(question.work, row.tuning, question.on_host, question.constants.keeping)
    stages = stage_footprints(s)
    stage = max(range(len(stages)), key=lambda n: stages[n].total)
    parameters = stage_parameters(s, stage)
    states, shares = _shares(s, parameters, s.layout.sharding_stage > 0)
    gradient_ranks, gradient_shares = _shares(s, parameters, s.layout.sharding_stage > 1)
    parts = row.memory._asdict()
    gradient, masters, moments = s.state_widths
    # moments are a multiple of masters, so that this is the share of the masters to a byte
    copies = parts["weights"] - round(masters * parts["optimizer_states"] / moments)
    buffer_words = "for the exchange of sharded states: with ZeRO stage 3 two gathered layers and the embedding"
    if size := context_buffers(s):
        buffer_words += f"; {size:,} bytes for the keys and values of other context ranks"
    if s.memory_model.receives_all and s.layout.pipeline > 1:
        received = (
            "waiting passes sent"
            if s.tuning.virtual_pipeline > 1
            else "a stage receives in all micro-batches of a step"
        )
        buffer_words += f"; what {received}"
    rows = [
        (
            "weights",
            f"{masters} * {shares} + {copies}",
            f"{masters}-byte masters of the {parameters.total:,} parameters of stage {stage + 1} on one tensor rank, "
            f"over {states}, and its compute copies",
            ZERO_SOURCE,
        ),
        (
            "gradients",
            f"{gradient} * {gradient_shares}",
            f"{gradient} bytes for each parameter, over {gradient_ranks}",
            ZERO_SOURCE,
        ),
        ("optimizer_states", f"{moments} * {shares}", f"Adam's two moments, {moments // 2} bytes each", ZERO_SOURCE),
        ("activations", *_activation_term(s, stage, parts["activations"]), ACTIVATIONS_SOURCE),
        ("logits", *_logit_term(s, parts["logits"]), "Korthikanti et al., 2022, section 4.3"),
        ("buffers", str(parts["buffers"]), buffer_words, ZERO_SOURCE),
        (
            "reserve",
            str(parts["reserve"]),
            "the process: context, kernels and communication, and gaps between tensors that come and go",
            f"configs/planner/{question.constants.framework}.yaml",
        ),
    ]
    return [Term(part, parts[part], *words) for part, *words in rows]


def time_terms(question: LayoutQuestion, row: LayoutEstimate) -> list[Term]:
    """Return the seconds of a step, by part."""
    machine, pace, time = question.machine, question.constants.pace_on(question.on_host), row.time
    training, layout = question.work.training, row.layout
    micro_batches = training.global_batch // (row.tuning.micro_batch * layout.data)
    setup = training_setup(question.work, row.tuning, question.on_host, question.constants.keeping)
    context, expert = _exchange_words(setup, pace)
    chunks = row.tuning.virtual_pipeline
    roofline_source = "Williams et al., 2009"
    rows = [
        ("compute", None, _compute_words(question, setup), f"{roofline_source}; Dao, 2023, section 4.1"),
        ("imbalance", None, "what the slowest stage (the last has the logits) has beyond the average", PIPELINE_SOURCE),
        (
            "bubble",
            f"{time.bubble * chunks:.6g} / {chunks}",
            f"filling and draining {layout.pipeline} stage(s), over model chunks",
            PIPELINE_SOURCE,
        ),
        (
            "tensor",
            None,
            f"collectives of {layout.tensor} tensor rank(s) at {pace.communication_efficiency:g} of the link's rate",
            "Korthikanti et al., 2022, section 4.2; Thakur et al., 2005",
        ),
        ("context", None, context, "Liu et al., 2023, section 3; Llama team, 2024, section 3.3.2"),
        ("expert", None, expert, "Lepikhin et al., 2020, section 3.2"),
        (
            "pipeline",
            None,
            f"transfers between stages, without the {pace.overlap:.0%} that overlap with compute",
            PIPELINE_SOURCE,
        ),
        (
            "data",
            f"{time.data:.6g}",
            f"gradients and updated weights over {layout.gradient_ranks} rank(s), without the {pace.overlap:.0%} that "
            "overlap",
            "Rajbhandari et al., 2020, section 7; Thakur et al., 2005",
        ),
        (
            "optimizer",
            f"{time.optimizer * machine.memory_bytes_per_second:.6g} / {machine.memory_bytes_per_second:.6g}",
            f"{UPDATE_BYTES} bytes of memory traffic for each parameter that the rank updates",
            roofline_source,
        ),
    ]
    parts = time._asdict()
    products = {part: f"{micro_batches} * {seconds / micro_batches:.6g}" for part, seconds in parts.items()}
    return [
        Term(part, parts[part], arithmetic or products[part], words, source) for part, arithmetic, words, source in rows
    ]


def _compute_words(question: LayoutQuestion, setup: TrainingSetup) -> str:
    """Return the numbers of one layer's forward pass, of the most frequent kind, and the rates that they run at."""
    machine, pace, model = question.machine, question.constants.pace_on(question.on_host), setup.model
    share, has_mixtures = rank_slice(setup, pace.unfused), 2 * model.mixture_layers >= model.layers
    layer = layer_forward_cost(model, share, is_mixture=has_mixtures)
    if has_mixtures:
        layer += experts_forward_cost(model, share)
    kernel = attention_kernel(setup, machine, pace)
    rate, attention_words = None if share.keeps_scores else machine.attention.get(kernel), "as products"
    if rate is not None:
        attention_words = f"({kernel}) at {rate:.4g} FLOP/s, {ATTENTION_BACKWARD_FACTOR:g} of it in the backward pass"
    return (
        f"micro-batches times an average stage; one layer's forward pass is {layer.matmul_flops:.4g} FLOPs of "
        f"products at {machine.matmul_flops_per_second:.4g} x {pace.matmul_efficiency:g} FLOP/s, "
        f"{layer.attention_flops:.4g} of attention {attention_words}, and "
        f"{traffic_bytes(layer):.4g} bytes at {machine.memory_bytes_per_second:.4g} x {pace.memory_efficiency:g} "
        f"bytes/s, and {layer.operations:g} calls of {machine.operation_seconds + pace.launch_seconds:.3g} s; the "
        f"backward pass is {BACKWARD_FACTOR:g} of it"
    )


def _exchange_words(s: TrainingSetup, pace: Pace) -> tuple[str, str]:
    """Return how the context ranks of a layout exchange keys and values, and its expert ranks tokens."""
    ranks, size, experts = s.layout.context, s.key_value_bytes, s.model.experts
    context = (
        f"{ranks - 1} rounds of a ring pass {size:,} bytes of keys and values for each layer, and twice as many in the "
        "backward pass, without what attention's computation hides"
    )
    if ranks == 1:
        context = "one rank has whole sequences"
    elif s.memory_model.gathers_keys_values:
        context = f"{ranks} context ranks gather {size:,} bytes of keys and values of each, and reduce their gradients"
    if experts is None:
        return context, "the model has no experts"
    if s.layout.expert == 1:
        return context, "every rank has all experts"
    return context, (
        f"all-to-alls of {exchanged_bytes(s):,} bytes of a rank for each mixture, two forward and two backward, over "
        f"{s.layout.expert} ranks with {experts.count // s.layout.expert} experts each; the busiest rank has "
        f"{pace.expert_imbalance:g} of the mean's tokens, and {pace.expert_overlap:.0%} overlap"
    )


def _shares(s: TrainingSetup, parameters: RankParameters, is_sharded: bool) -> tuple[str, str]:
    """Return over how many ranks what each parameter needs is divided, in words, and the parameters of a rank's share
    as arithmetic."""
    degree, shards = (s.layout.sharding_degree, s.expert_shards) if is_sharded else (1, 1)
    if not parameters.routed:
        return f"{degree} rank(s)", f"{parameters.plain} / {degree}"
    words = f"{degree} rank(s), those of its experts over {shards}"
    return words, f"({parameters.plain} / {degree} + {parameters.routed} / {shards})"


def _activation_term(s: TrainingSetup, stage: int, value: int) -> tuple[str, str]:
    """Return the arithmetic of a stage's activations, and what its numbers mean. value: their bytes."""
    layer, in_flight = layer_bytes(s), waiting_passes(s, stage)
    chunks = s.tuning.virtual_pipeline
    waiting = in_flight * layer.stage_bytes(s, stage) // chunks
    stored_words = {
        "none": f"each layer keeps {BACKWARD_INPUTS}",
        "full": "each layer keeps its input",
        "selective": "each layer keeps a part",
    }
    first_layers = s.tuning.recompute_layers
    partial_words = f"the first {first_layers} layers of each chunk keep their input, the others {BACKWARD_INPUTS}"
    keeps_all = s.tuning.recompute == "none" or not s.repeats_whole_chunk(stage)
    recompute_words = "" if keeps_all else f", and at most {layer.whole:,} bytes for a recomputed layer"
    words = (
        f"{in_flight} micro-batch(es) in flight x {s.layers_of(stage)} layers / {s.tuning.virtual_pipeline} chunk(s); "
        f"{partial_words if first_layers else stored_words[s.tuning.recompute]}; then the embedding{recompute_words}"
    )
    mixtures = s.mixtures_of(stage)
    if mixtures:
        words += "; of a mixture also the tokens of its experts"
    # the bytes that wait: of dense layers and mixtures, each with what is computed again and, where only some are, the
    # others
    repeated, mixtures_repeated = s.repeated_layers[stage]
    others, other_mixtures = s.layers_of(stage) - repeated, mixtures - mixtures_repeated
    terms = [f"{repeated - mixtures_repeated} * {layer.stored}"]
    terms += [f"{others - other_mixtures} * {layer.whole}"] if others else []
    if mixtures and layer.mixture is not None:
        terms.append(f"{mixtures_repeated} * {layer.mixture.stored}")
        terms += [f"{other_mixtures} * {layer.mixture.whole}"] if others else []
    stored = f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]
    return f"{in_flight} * {stored} / {chunks} + {value - waiting}", words


def _logit_term(s: TrainingSetup, value: int) -> tuple[str, str]:
    """Return the arithmetic of the logits, and what its numbers mean. value: their bytes."""
    if value == 0:
        return "0", "the stage has no head"
    if s.memory_model.logit_bytes is None:
        softmax = "" if s.memory_model.fused_loss else " a softmax,"
        return str(value), f"the head computes in chunks: one of logits,{softmax} and the gradients of head and input"
    vocabulary = s.model.vocab_size // s.layout.tensor
    words = "bytes of each logit at the peak x tokens of the micro-batch x vocabulary of the rank"
    gathered_bytes = gathered_logit_bytes(s) * s.model.vocab_size
    if gathered_bytes:
        words += ", and of the gathered logits of the whole vocabulary"
    return f"({s.memory_model.logit_bytes:g} * {vocabulary} + {gathered_bytes:.12g}) * {s.tokens}", words
