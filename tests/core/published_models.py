"""The shapes of published models, with the numbers that their makers and others give for them.

total, active: parameters of the model's class in transformers, counted on the meta device; active is total less the
routed experts that a token does not choose. gigaflops: a token of 4,096, forward and backward, as published training
rows imply it (tokens/s beside TFLOP/s).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from levelfield.specs.architecture import Model

_SHARED: dict[str, Any] = dict(
    family="published", positions="rope", rope_base=1e6, norm="rmsnorm", norm_eps=1e-5, activation="swiglu", bias=False,
    tied_embeddings=False, hidden_dropout=0, attention_dropout=0, init_std=0.02, scaled_residual_init=True,
)  # fmt: skip
_LLAMA3 = dict(kind="llama3", factor=8, low_factor=1, high_factor=4, original_length=8192)
_LATENT = dict(key_value_rank=512, plain_size=128, rotary_size=64, value_size=128)


class Published(NamedTuple):
    sizes: dict[str, Any]
    total: int
    active: int
    gigaflops: float | None = None

    def model(self, **changes: Any) -> Model:
        return Model.model_validate({**_SHARED, **self.sizes, **changes})


def _sizes(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any) -> dict[str, Any]:
    sizes = dict(layers=layers, hidden_size=hidden, heads=heads, kv_heads=kv_heads, ffn_hidden_size=ffn)
    return {**sizes, "vocab_size": vocab, **more}


MODELS: dict[str, Published] = {
    "llama3.1_8b": Published(
        _sizes(32, 4096, 32, 8, 14336, 128256, rope_scaling=_LLAMA3), 8_030_261_248, 8_030_261_248
    ),
    "qwen2.5_7b": Published(_sizes(28, 3584, 28, 4, 18944, 152064, qkv_bias=True), 7_615_616_512, 7_615_616_512),
    "qwen3_8b": Published(
        _sizes(36, 4096, 32, 8, 12288, 151936, head_dim=128, query_key_norm=True), 8_190_735_360, 8_190_735_360
    ),
    "mixtral_8x7b": Published(
        _sizes(32, 4096, 32, 8, 14336, 32000, experts=dict(count=8, chosen=2, ffn_hidden_size=14336)),
        46_702_792_704,
        12_879_925_248,
        79.7,
    ),
    "qwen3_30b_a3b": Published(
        _sizes(
            48,
            2048,
            32,
            4,
            6144,
            151936,
            head_dim=128,
            query_key_norm=True,
            experts=dict(count=128, chosen=8, ffn_hidden_size=768),
        ),
        30_532_122_624,
        3_353_032_704,
        23.01,
    ),
    "deepseek_v2_lite": Published(
        _sizes(
            27,
            2048,
            16,
            16,
            10944,
            102400,
            latent_attention=_LATENT,
            experts=dict(count=64, chosen=6, ffn_hidden_size=1408, shared=2, first_layer=1),
        ),
        15_706_484_224,
        2_661_150_208,
        16.39,
    ),
    "olmo3_7b": Published(
        _sizes(
            32,
            4096,
            32,
            32,
            11008,
            100278,
            joint_query_key_norm=True,
            norm_place="after",
            sliding_window=4096,
            full_attention_interval=4,
        ),
        7_298_011_136,
        7_298_011_136,
    ),
    "smollm3_3b": Published(
        _sizes(36, 2048, 16, 4, 11008, 128256, no_rope_interval=4, tied_embeddings=True), 3_075_098_624, 3_075_098_624
    ),
    "glm4.5_air": Published(
        _sizes(
            46,
            4096,
            96,
            8,
            10944,
            151552,
            head_dim=128,
            rotary_dim=64,
            qkv_bias=True,
            experts=dict(count=128, chosen=8, ffn_hidden_size=1408, shared=1, first_layer=1),
        ),
        106_852_245_504,
        13_424_123_904,
    ),
    "deepseek_v3": Published(
        _sizes(
            61,
            7168,
            128,
            128,
            18432,
            129280,
            latent_attention={**_LATENT, "query_rank": 1536},
            experts=dict(count=256, chosen=8, ffn_hidden_size=2048, shared=1, first_layer=3),
        ),
        671_026_404_352,
        37_552_282_624,
        249.8,
    ),
}
