"""What a step's program shows of itself for levelfield's SpotCheck: some rows of products, norms and attention.

The program has these outputs in every step, and no other one is compiled for the step that is sampled: what is shown is
what the other steps compute. `draws` says where: numbers in [0, 1) for rows and for columns, so that one program serves
all places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import numpy as jnp
from levelfield.worker.spot_check import ROWS

if TYPE_CHECKING:
    from levelfield.worker import SpotCheck
    from numpy.typing import NDArray

    Arrays = dict[str, jax.Array]


class Samples:
    """The samples of one block, while it is traced. draws: `rows` and `columns`, [ROWS] each."""

    def __init__(self, draws: Arrays) -> None:
        self.draws = draws
        self.arrays: dict[str, Arrays] = {}  # by event and name

    def product(self, name: str, x: jax.Array, weight: jax.Array, bias: jax.Array | None, y: jax.Array) -> None:
        """Keep some of y = x W^T + b. x: [..., in]; weight: [out, in]; y: [..., out]."""
        columns = scale_draws(self.draws["columns"], weight.shape[0])
        arrays = {"inputs": self.rows(x), "weight": weight[columns], "output": self.rows(y)[:, columns]}
        self.arrays[f"product {name}"] = arrays if bias is None else {**arrays, "bias": bias[columns]}

    def norm(self, name: str, x: jax.Array, weight: jax.Array, bias: jax.Array | None, y: jax.Array) -> None:
        """Keep some rows of a norm's input x and output y, [..., hidden]."""
        arrays = {"inputs": self.rows(x), "weight": weight, "output": self.rows(y)}
        self.arrays[f"norm {name}"] = arrays if bias is None else {**arrays, "bias": bias}

    def attention(self, query: jax.Array, key: jax.Array, value: jax.Array, mixed: jax.Array) -> None:
        """Keep one head of one sequence. query, mixed: [batch, sequence, heads, D]; key, value: of kv_heads."""
        count, groups = query.shape[2], key.shape[2]
        sequence = scale_draws(self.draws["rows"][:1], query.shape[0])[0]
        head = scale_draws(self.draws["columns"][:1], count)[0]
        positions, group = scale_draws(self.draws["rows"], query.shape[1]), head // (count // groups)
        self.arrays["attention attention"] = {
            "query": query[sequence, positions, head],
            "key": key[sequence, :, group],
            "value": value[sequence, :, group],
            "output": mixed[sequence, positions, head],
        }

    def rows(self, x: jax.Array) -> jax.Array:
        flat = x.reshape(-1, x.shape[-1])
        return flat[scale_draws(self.draws["rows"], flat.shape[0])]


def scale_draws(draws: jax.Array, size: int) -> jax.Array:
    """Return the positions below `size` that `draws`, numbers in [0, 1), stand for."""
    return jnp.minimum((draws * size).astype(jnp.int32), size - 1)


DRAWS = ("rows", "columns")
UNSAMPLED_DRAWS = {name: np.zeros(ROWS, np.float32) for name in DRAWS}  # the draws of a step that is not sampled


def draw(check: SpotCheck) -> dict[str, NDArray[np.float32]]:
    """Return the draws of a step that is sampled. Columns, at which parameters are sampled too, are those of both."""
    size = 2**20
    positions = {"rows": check.places(ROWS, size), "columns": check.updated_places("columns", size)}
    return {name: np.array(positions[name], np.float32) / np.float32(size) for name in DRAWS}


def record_samples(
    check: SpotCheck, blocks: dict[str, Any], outer: dict[str, Any], draws: dict[str, NDArray[np.float32]], length: int
) -> None:
    """Give `check` what the program showed. blocks: arrays [layers, ...]; outer: of what is outside of the layers."""
    layers = next(iter(blocks.values()))["output"].shape[0]
    for layer in check.layers(range(layers)):
        for key, arrays in blocks.items():
            _record_operation(check, key, f"layers.{layer}.", {n: x[layer] for n, x in arrays.items()}, draws, length)
    for key, arrays in outer.items():
        _record_operation(check, key, "", arrays, draws, length)


def _record_operation(
    check: SpotCheck, key: str, prefix: str, arrays: dict[str, Any], draws: dict[str, NDArray[np.float32]], length: int
) -> None:
    event, name = key.split(" ")
    values = {field: np.asarray(x, np.float32) for field, x in arrays.items()}
    if event == "attention":
        positions = np.minimum((draws["rows"] * np.float32(length)).astype(np.int32), length - 1)
        query, keys, value, output = (values[n] for n in ("query", "key", "value", "output"))
        check.attention(prefix + name, positions.tolist(), query, keys, value, output)
        return
    record_sample = check.product if event == "product" else check.norm
    record_sample(prefix + name, values["inputs"], values["weight"], values.get("bias"), values["output"])
