"""Causal self-attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023) and rotary positions."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker import Unsupported, head_size, part, rotary_magnitude, scaled_frequencies
from model.kernels import chosen
from model.layers import Linear, RMSNorm, heads_for_one_input, joint_of
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from levelfield.worker.architecture import Model, RopeScaling


class Attention(nn.Module):
    """Heads of size D; each of `kv_heads` keys and values serves heads / kv_heads queries.

    query_norm, key_norm: before the rotation, of each head (Henry et al., 2020) or of all heads together (OLMo 2);
    None in a model without them.
    """

    def __init__(
        self, model: Model, attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self.head_size = head_size(model)
        inner, narrow = model.heads * self.head_size, model.kv_heads * self.head_size
        output_bias = model.bias or part(model, "attention_bias")
        bias, self.norms_all_heads = output_bias or part(model, "qkv_bias"), part(model, "joint_query_key_norm")
        widths = (inner, narrow) if self.norms_all_heads else (self.head_size, self.head_size)
        has_norms = part(model, "query_key_norm") or self.norms_all_heads
        self.query = Linear(model.hidden_size, inner, bias=bias)
        self.key = Linear(model.hidden_size, narrow, bias=bias)
        self.value = Linear(model.hidden_size, narrow, bias=bias)
        self.query_norm = RMSNorm(widths[0], eps=model.norm_eps) if has_norms else None
        self.key_norm = RMSNorm(widths[1], eps=model.norm_eps) if has_norms else None
        self.output = Linear(inner, model.hidden_size, bias=output_bias)
        self.attend = attend
        # of queries, since the kernels divide scores by the root of the head size
        scale = part(model, "attention_scale")
        self.query_scale = None if scale is None else scale * self.head_size**0.5

    def forward(self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor] | None = None) -> torch.Tensor:
        """Return the attention's output of x, both [batch, sequence, hidden].

        rotary: the tables of `rotary_tables`, or None for learned positions.
        """
        (layers,) = self.joinable_layers()
        kernel, joint = chosen("rotary"), joint_of(layers)
        if kernel is None or joint is None or rotary is None or self.query_norm is not None:
            # query [batch, sequence, heads, head_dim], key and value [batch, sequence, kv_heads, head_dim]
            query, key, value = heads_for_one_input(x, layers, self.head_size)
            if self.norms_all_heads:
                # [batch, sequence, heads, head_dim] -> [batch, sequence, heads head_dim] and back; the same of keys
                query = self.query_norm(query.flatten(2)).view_as(query)  # type: ignore[misc]
                key = self.key_norm(key.flatten(2)).view_as(key)  # type: ignore[misc]
            elif self.query_norm is not None:
                query, key = self.query_norm(query), self.key_norm(key)  # type: ignore[misc]  # both or none
            if rotary is not None:
                query, key = rotate(query, rotary), rotate(key, rotary)
        else:
            heads = [rows // self.head_size for rows in joint.rows]
            # joined [batch, sequence, (heads + 2 kv_heads) head_dim] -> the same three
            query, key, value = kernel.rotate_joined(self.query(x), rotary, heads)
        query = query if self.query_scale is None else query * self.query_scale
        # [batch, sequence, heads, head_dim] -> [batch, sequence, heads head_dim] -> [batch, sequence, hidden]
        return self.output(self.attend(query, key, value).flatten(2))  # type: ignore[no-any-return]

    def joinable_layers(self) -> list[list[nn.Module]]:
        """Return the groups of layers that StepCasts may join."""
        return [[self.query, self.key, self.value]]


def rotary_tables(
    size: int,
    length: int,
    base: float,
    device: torch.device,
    dtype: torch.dtype,
    scaling: RopeScaling | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return RoPE's cosines and sines (Su et al., 2021) for heads of size D, [length, 1, D / 2].

    They are computed in float32.
    """
    if scaling is None:
        frequency, magnitude = base ** -(torch.arange(0, size, 2, dtype=torch.float32, device=device) / size), 1.0
    else:
        frequency = torch.from_numpy(scaled_frequencies(scaling, base, size)).to(device)
        magnitude = rotary_magnitude(scaling)
    # [length, 1, head_dim / 2]
    angle = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequency)[:, None, :]
    return (angle.cos() * magnitude).to(dtype), (angle.sin() * magnitude).to(dtype)


def rotate(x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate the first half of each head against its second half, by its position. x: [batch, sequence, n, D].

    Tables of fewer than D / 2 angles rotate the first numbers of each head, and leave the others as they are.
    """
    width = 2 * tables[0].shape[-1]
    if width < x.shape[-1]:
        return torch.cat((rotate(x[..., :width], tables), x[..., width:]), dim=-1)
    kernel = chosen("rotary")
    if kernel is None:
        cos, sin = (table[: x.shape[1]] for table in tables)  # [sequence, 1, head_dim / 2]
        first, second = x.chunk(2, dim=-1)  # [batch, sequence, n, head_dim / 2]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return kernel.rotate(x, tables)  # type: ignore[no-any-return]


def check_attention(name: str) -> None:
    """Raise Unsupported where the kernel is not installed."""
    if name == "flash_attn":
        flash_attention()


def choose_attention(
    name: str, dropout: float, private_randomness: int | None, window: int | None = None
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the kernel `name`: (query, key, value), each [batch, sequence, n, D] -> [batch, sequence, n, D].

    There may be fewer queries than keys: they are then those of the last positions.
    private_randomness: see `private`; None where the rank's own random numbers will do. window: the number of tokens
    that a token attends to, itself among them (Beltagy et al., 2020); None: all before it.
    """
    kernel: Callable[..., torch.Tensor] = flash_attention() if name == "flash_attn" else scaled_dot_product
    kernel = kernel if window is None else functools.partial(kernel, window=window)
    separate = private_randomness is not None and dropout

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with (
            private(private_randomness, query.device)  # type: ignore[arg-type]
            if separate
            else contextlib.nullcontext()
        ):
            return kernel(query, key, value, dropout)

    return attend


def scaled_dot_product(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, window: int | None = None
) -> torch.Tensor:
    """Return torch's attention; which of its kernels computes it follows from shape, type and device."""
    queries, keys = query.shape[1], key.shape[1]
    is_whole = window is None and queries == keys
    mask = None if is_whole else banded(queries, keys, window or keys, query.device)
    mixed = functional.scaled_dot_product_attention(
        query.transpose(1, 2),  # [batch, heads, queries, head_dim]
        key.transpose(1, 2),  # [batch, kv_heads, keys, head_dim]
        value.transpose(1, 2),  # [batch, kv_heads, keys, head_dim]
        dropout_p=dropout,
        attn_mask=mask,  # [queries, keys]
        is_causal=mask is None,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return mixed.transpose(1, 2)  # [batch, queries, heads, head_dim]


def banded(queries: int, keys: int, window: int, device: torch.device) -> torch.Tensor:
    """Return the mask of the last `queries` of `keys` tokens, [queries, keys].

    Each attends to itself and to the window - 1 tokens before it.
    """
    before = keys - queries
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(before).triu(before + 1 - window)


def flash_attention() -> Callable[..., torch.Tensor]:
    """Return the flash-attn package's kernel (Dao, 2023); not yet run on the chip. Raises Unsupported without it."""
    try:
        from flash_attn import flash_attn_func
    except ImportError as error:
        raise Unsupported(f"attention flash_attn: the package flash-attn cannot be imported ({error})") from None

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, window: int | None = None
    ) -> torch.Tensor:
        band = (-1, -1) if window is None else (window - 1, 0)
        return flash_attn_func(  # type: ignore[no-any-return]
            query, key, value, dropout_p=dropout, causal=True, window_size=band
        )

    return attend


@contextlib.contextmanager
def private(stream: int, device: torch.device) -> Iterator[None]:
    """Give this rank's heads random numbers of their own.

    Afterwards the common ones go on as if nothing was drawn.

    The seed is drawn from the common numbers, so it is another one in each layer and micro-batch, and the same
    when a checkpointed block is computed again. stream: the tensor-parallel rank.
    """
    seed = int(torch.randint(2**62, (), device="cpu")) + stream
    devices: dict[str, Any] = (
        {"devices": []} if device.type == "cpu" else {"devices": [device], "device_type": device.type}
    )
    with torch.random.fork_rng(**devices):  # without devices it would save the numbers of every device of the machine
        torch.manual_seed(seed)
        yield
