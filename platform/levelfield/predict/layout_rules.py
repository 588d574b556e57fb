"""The rules for batch sizes, layout, heads and layers, and the nearest layouts when a rule is broken.

The first five come from OneFlow's GPT report. The rules for grouped-query heads, sequence and vocabulary follow from
the way in which tensor and sequence parallelism split a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from levelfield.errors import LayoutError
from levelfield.specs.case import Work
from levelfield.specs.layout import Layout
from levelfield.worker.division import DIVIDED_OVER, EXPERTS_OVER, SEQUENCE_OVER

_SIZE_WORDS = {
    "heads": "{} attention heads",
    "kv_heads": "{} key-value heads",
    "ffn_hidden_size": "ffn size {}",
    "vocab_size": "vocabulary {}",
    "layers": "{} layers",
    "sequence_length": "sequence length {}",
}


def broken_rules(
    work: Work,
    layout: Layout,
    micro_batch: int,
    nodes: int,
    devices_per_node: int,
    virtual_pipeline: int = 1,
    uneven_stages: bool = False,
) -> list[str]:
    """Return the broken rules, each as a sentence with its numbers; empty for a possible layout.

    uneven_stages: the stages of the pipeline, and their model chunks, may differ by a layer.
    """
    batch, per_pass = work.training.global_batch, micro_batch * layout.data
    sentences = []
    if batch % per_pass:
        sentences.append(
            f"micro-batch {micro_batch} x data {layout.data} x accumulation = global batch: "
            f"{batch} is not a multiple of {per_pass}"
        )
    sentences += broken_layout_rules(work, layout, nodes, devices_per_node, uneven_stages)
    micro_batches = accumulation(work, layout, micro_batch)
    rules = _interleaving_rules(work, layout, micro_batches, virtual_pipeline, uneven_stages)
    return sentences + [sentence for holds, sentence in rules if not holds]


def broken_layout_rules(
    work: Work, layout: Layout, nodes: int, devices_per_node: int, uneven_stages: bool
) -> list[str]:
    """Return a layout's broken rules that do not depend on the micro-batch. uneven_stages: as in `broken_rules`."""
    world_size = nodes * devices_per_node
    sentences = [sentence for holds, sentence in _division_rules(work, layout, uneven_stages) if not holds]
    if layout.world_size != world_size:
        size_sentence = (
            f"{layout.sizes_text} = nodes {nodes} x devices {devices_per_node}: {layout.world_size} is not {world_size}"
        )
        return [size_sentence, *sentences]
    return sentences


def can_interleave(
    work: Work, layout: Layout, micro_batch: int, virtual_pipeline: int, uneven_stages: bool = False
) -> bool:
    """Return whether the schedule of model chunks is possible with this micro-batch. uneven_stages: as in
    `broken_rules`."""
    if virtual_pipeline == 1:
        return True
    micro_batches = accumulation(work, layout, micro_batch)
    return all(holds for holds, _ in _interleaving_rules(work, layout, micro_batches, virtual_pipeline, uneven_stages))


def accumulation(work: Work, layout: Layout, micro_batch: int) -> int:
    """Return the micro-batches per step of one data-parallel rank."""
    return work.training.global_batch // (micro_batch * layout.data)


def require_possible(
    work: Work,
    layout: Layout,
    micro_batch: int,
    nodes: int,
    devices_per_node: int,
    virtual_pipeline: int = 1,
    uneven_stages: bool = False,
    is_default: bool = False,
) -> None:
    """Check all rules. Raises LayoutError with the broken rules and the nearest possible layouts of equal stages.

    is_default: nobody asked for the layout. It is broken only where no other one of these devices is possible either.
    """
    reasons = broken_rules(work, layout, micro_batch, nodes, devices_per_node, virtual_pipeline, uneven_stages)
    if not reasons:
        return
    layouts_nearby = (
        [] if is_default else nearest_layouts(work, layout, micro_batch, nodes, devices_per_node, virtual_pipeline)
    )
    suggestion = f"the nearest possible: {', '.join(layouts_nearby)}"
    if not layouts_nearby:  # the nearest numbers of devices that have a possible layout
        devices = max(1, layout.world_size // nodes)
        counts = sorted((n for n in range(1, 2 * devices + 1) if n != devices), key=lambda n: abs(n - devices))
        layouts = ((n, nearest_layouts(work, layout, micro_batch, nodes, n, virtual_pipeline, count=1)) for n in counts)
        suggestions = [f"{first[0]} on {nodes * n} devices" for n, first in layouts if first][:3]
        suggestion = f"not possible on {layout.world_size} devices; nearest: {', '.join(suggestions) or 'none'}"
    if is_default:
        model, training = work.model, work.training
        raise LayoutError(
            f"no layout of {nodes * devices_per_node} devices is possible:\n  global batch {training.global_batch}, "
            f"micro-batch {micro_batch}, {model.layers} layers, {model.heads} heads, {model.kv_heads} key-value heads, "
            f"ffn size {model.ffn_hidden_size} and vocabulary {model.vocab_size} do not divide\n  {suggestion}"
        )
    chunk_words = f" and virtual pipeline {virtual_pipeline}" if virtual_pipeline > 1 else ""
    rules = "\n  ".join(reasons)
    raise LayoutError(
        f"layout {layout} with micro-batch {micro_batch}{chunk_words} is impossible:\n  {rules};\n  {suggestion}"
    )


def require_layers(work: Work, layout: Layout, virtual_pipeline: int, recompute_layers: int | None) -> None:
    """Raises LayoutError for more recomputed layers than the longest model chunk has."""
    longest = math.ceil(work.model.layers / (layout.pipeline * virtual_pipeline))
    if recompute_layers is not None and recompute_layers > longest:
        raise LayoutError(
            f"recompute_layers {recompute_layers}: a chunk of {layout} with virtual pipeline {virtual_pipeline} has "
            f"{longest} of the {work.model.layers} layers; give 1 to {longest}, or leave it out for all layers"
        )


def nearest_layouts(
    work: Work, layout: Layout, micro_batch: int, nodes: int, devices: int, virtual_pipeline: int = 1, count: int = 3
) -> list[str]:
    """Return up to `count` possible layouts for the devices, ordered by the number of changed factors of two."""
    batch, candidates = work.training.global_batch, []
    for other in _candidate_layouts(layout, nodes * devices):
        fitting = [n for n in divisors(batch) if batch % (n * other.data) == 0]
        for size in sorted(fitting, key=lambda n: abs(math.log(n / micro_batch)))[:2]:
            if not broken_rules(work, other, size, nodes, devices, virtual_pipeline):
                pairs = (
                    (layout.data, other.data),
                    (layout.tensor, other.tensor),
                    (layout.pipeline, other.pipeline),
                    (micro_batch, size),
                )
                distance = sum(abs(math.log2(a / b)) for a, b in pairs)
                candidates.append((distance, f"{other} with micro-batch {size}"))
    return [text for _, text in sorted(candidates)[:count]]


def _division_rules(work: Work, layout: Layout, uneven_stages: bool) -> Iterator[tuple[bool, str]]:
    """Yield whether each size can be divided as the layout needs it, with a sentence for the case that it cannot."""
    model, experts = work.model, work.model.experts
    if model.head_dim is None and model.latent_attention is None:
        yield model.hidden_size % model.heads == 0, f"hidden size {model.hidden_size} over {model.heads} heads"
    for name, dimension in DIVIDED_OVER.items():
        if name == "ffn_hidden_size" and experts and model.mixture_layers == model.layers:
            continue  # no layer has an MLP of this size
        size, parts = getattr(model, name), getattr(layout, dimension)
        may_be_uneven = name == "layers" and uneven_stages and model.layers >= layout.pipeline
        yield (
            size % parts == 0 or may_be_uneven,
            f"{_SIZE_WORDS[name].format(size)} cannot be cut over {dimension} {parts}",
        )
    if experts is None:
        yield layout.expert == 1, f"expert parallelism over {layout.expert} ranks: the model has no experts"
    else:  # that expert parallelism divides data x context is a rule of the layout itself
        sizes = {"count": "{} experts", "ffn_hidden_size": "an expert's ffn size {}"}
        for name, dimension in EXPERTS_OVER.items():
            size, parts = getattr(experts, name), getattr(layout, dimension)
            yield size % parts == 0, f"{sizes[name].format(size)} cannot be cut over {dimension} {parts}"
    if layout.sequence_parallel:
        yield layout.tensor > 1, "sequence parallel (+seq) needs a tensor-parallel size above 1"
        for name, dimension in SEQUENCE_OVER.items():
            size, parts = work.training.sequence_length, getattr(layout, dimension)
            yield size % parts == 0, f"{_SIZE_WORDS[name].format(size)} cannot be cut over {dimension} {parts}"
    if layout.context > 1:
        # Each context rank takes a piece from the front and the same from the back, so that the causal mask leaves all
        # of them equal work (Llama team, 2024, section 3.3.2). With sequence parallelism tensor ranks divide its part.
        length, split = work.training.sequence_length, layout.tensor if layout.sequence_parallel else 1
        tensor_words = f" and tensor {layout.tensor}" if layout.sequence_parallel else ""
        yield (
            length % (2 * layout.context) == 0 and length // layout.context % split == 0,
            f"sequence length {length} cannot be cut over 2 x context {layout.context}{tensor_words}",
        )


def _interleaving_rules(
    work: Work, layout: Layout, micro_batches: int, virtual_pipeline: int, uneven_stages: bool
) -> Iterator[tuple[bool, str]]:
    """Yield the rules of the interleaved schedule, and whether each holds (Narayanan et al., 2021, section 2.2)."""
    if virtual_pipeline == 1:
        return
    stages, layers, schedule = layout.pipeline, work.model.layers, f"virtual pipeline {virtual_pipeline}"
    yield stages > 1, f"{schedule} needs a pipeline size above 1"
    parts = stages * virtual_pipeline
    divides = layers % parts == 0 or (uneven_stages and layers >= parts)
    yield divides, f"{layers} layers cannot be cut over pipeline {stages} x {schedule}"
    yield (
        micro_batches % stages == 0,
        f"{schedule} takes rounds of as many micro-batches as pipeline {stages}: accumulation {micro_batches} is not a "
        "multiple",
    )


def _candidate_layouts(layout: Layout, world_size: int) -> Iterator[Layout]:
    """Yield every division of `world_size` devices with the requested context, sharding stage and sequence parallelism.

    The requested expert ranks stay where they divide data x context.
    """
    for tensor in divisors(world_size // layout.context if world_size % layout.context == 0 else 0):
        for pipeline in divisors(world_size // layout.context // tensor):
            ranks = world_size // tensor // pipeline
            stage = layout.sharding_stage if ranks > 1 else 0
            yield Layout(
                data=ranks // layout.context,
                tensor=tensor,
                pipeline=pipeline,
                context=layout.context,
                expert=layout.expert if ranks % layout.expert == 0 else 1,
                sequence_parallel=layout.sequence_parallel and tensor > 1,
                sharding_stage=stage,
                sharding_degree=ranks if stage else 1,
            )


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, smallest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
