"""Causal self-attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023) and rotary positions."""

import contextlib

import torch
from layers import Linear
from levelfield.worker import Unsupported
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Heads of size D = hidden / heads; each of `kv_heads` keys and values serves heads / kv_heads queries."""

    def __init__(self, model, attend):
        super().__init__()
        self.head_size = model.hidden_size // model.heads
        inner, narrow = model.heads * self.head_size, model.kv_heads * self.head_size
        self.query = Linear(model.hidden_size, inner, bias=model.bias)
        self.key = Linear(model.hidden_size, narrow, bias=model.bias)
        self.value = Linear(model.hidden_size, narrow, bias=model.bias)
        self.output = Linear(inner, model.hidden_size, bias=model.bias)
        self.attend = attend

    def forward(self, x, rotary=None):
        """x: [batch, sequence, hidden]; rotary: the tables of `rotary_tables`, or None for learned positions."""
        query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        return self.output(self.attend(query, key, value).flatten(2))

    def heads(self, x):
        """[batch, sequence, n D] -> [batch, sequence, n, D]; n is this rank's share under tensor parallelism."""
        return x.unflatten(-1, (-1, self.head_size))


def rotary_tables(head_size, length, base, device, dtype):
    """Cosines and sines [length, 1, D / 2] of RoPE (Su et al., 2021), computed in float32."""
    frequency = base ** -(torch.arange(0, head_size, 2, dtype=torch.float32, device=device) / head_size)
    angle = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequency)[:, None, :]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x, tables):
    """Rotate the first half of each head against its second half, by its position. x: [batch, sequence, n, D]."""
    cos, sin = (table[: x.shape[1]] for table in tables)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def check_attention(name):
    """Raises Unsupported where the kernel is not installed."""
    if name == "flash_attn":
        flash_attention()


def choose_attention(name, dropout, private_randomness):
    """The kernel `name`: (query, key, value), each [batch, sequence, n, D] -> [batch, sequence, n, D].

    private_randomness: see `private`; None where the rank's own random numbers will do.
    """
    kernel = flash_attention() if name == "flash_attn" else scaled_dot_product

    def attend(query, key, value):
        with private(private_randomness) if private_randomness is not None and dropout else contextlib.nullcontext():
            return kernel(query, key, value, dropout)

    return attend


def scaled_dot_product(query, key, value, dropout):
    mixed = functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        dropout_p=dropout,
        is_causal=True,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return mixed.transpose(1, 2)


def flash_attention():
    """The flash-attn package's kernel (Dao, 2023); not yet run on the chip. Raises Unsupported without it."""
    try:
        from flash_attn import flash_attn_func
    except ImportError as error:
        raise Unsupported(f"attention flash_attn: the package flash-attn cannot be imported ({error})") from None
    return lambda query, key, value, dropout: flash_attn_func(query, key, value, dropout_p=dropout, causal=True)


@contextlib.contextmanager
def private(stream):
    """Random numbers of their own for this rank's heads; afterwards the common ones go on as if nothing was drawn.

    The seed is drawn from the common numbers, so it is another one in each layer and micro-batch, and the same
    when a checkpointed block is computed again. stream: the tensor-parallel rank.
    """
    seed = int(torch.randint(2**62, (), device="cpu")) + stream
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
