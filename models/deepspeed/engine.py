"""DeepSpeed's engine (Rajbhandari et al., 2020) around the torch implementation's model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deepspeed
import torch
from configuration import configuration
from levelfield.worker import Initializer
from levelfield.worker.job import Coordinates, Job
from model.decoder import Decoder
from parallelism.parallelize import decoder_arguments
from partition import fill, fill_master_weights, whole_shape
from step.optimizer import make_adamw
from step.recompute import compile_blocks, recompute_blocks
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload


def open_engine(
    job: Job, place: Coordinates, initializer: Initializer, device: torch.device
) -> deepspeed.DeepSpeedEngine:
    """Return the engine, with initial weights. Its `module` is the model, of canonical parameter names."""
    config = configuration(job)
    with construction(job, config):
        model = Decoder(**decoder_arguments(job, place))
    if job.layout.sharding_stage < 3:
        model.to_empty(device=device)
    fill(model, initializer)
    recompute_blocks(model, job.tuning)
    if job.tuning.compile:
        compile_blocks(model)
    parameters = [(parameter, len(whole_shape(parameter))) for parameter in model.parameters()]
    # torch's optimizer, as DeepSpeed's own is compiled at its first use
    optimizer = make_adamw(parameters, job.training)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    if job.layout.sharding_stage == 3 and job.tuning.recompute == "selective":
        hide_gathering(engine.optimizer.parameter_offload)
    if job.training.precision != "fp32":
        fill_master_weights(engine, initializer)
        if not job.layout.sharding_stage:
            optimizer.state.clear()  # DeepSpeed made it by a step without gradients, which Adam would count
    model.prepare(device)
    return engine


def construction(job: Job, config: dict[str, Any]) -> AbstractContextManager[object]:
    """Return the context to make the model in.

    Under ZeRO 3 each parameter is partitioned as it is made; else the model is made without memory first.
    """
    if job.layout.sharding_stage == 3:
        # without its argument dtype: on a processor it makes 16 bits of any
        return deepspeed.zero.Init(config_dict_or_path=config)  # type: ignore[no-any-return]
    return torch.device("meta")


def hide_gathering(offload: DeepSpeedZeRoOffload) -> None:
    """Have ZeRO 3 gather and free parameters unseen by selective recomputation, which demands of a block's second
    forward pass the operations of the first one: what is gathered in a block, for later ones too, depends on what is
    there already."""
    for name in ("pre_sub_module_forward_function", "post_sub_module_forward_function"):
        setattr(offload, name, without_modes(getattr(offload, name)))


def without_modes(hook: Callable[[torch.nn.Module], None]) -> Callable[[torch.nn.Module], None]:
    """Return the hook without the modes that watch torch's operations."""

    def call(module: torch.nn.Module) -> None:
        with _disable_current_modes():
            hook(module)

    return call
