"""A step casts each parameter once, whatever its number of micro-batches, and trains as if each had its own cast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layouts import MODELS, SINGLE, Variant, planted, small_job, train
from matrix import VARIANTS
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

NEVER = "from model import casts\ncasts.StepCasts.make = lambda self: None\n"
# One product of query, key and value: the gradient of its input is one sum, not three that are rounded to 16 bits each.
APART = """
from model import attention, casts
joinable, init = attention.Attention.joinable_layers, casts.StepCasts.__init__
def init_apart(self, *arguments):
    attention.Attention.joinable_layers = lambda self: []
    init(self, *arguments)
    attention.Attention.joinable_layers = joinable
casts.StepCasts.__init__ = init_apart
"""

pytestmark = [pytest.mark.torch, pytest.mark.thorough]


class Casts(TorchDispatchMode):
    """Counts casts of float32 tensors of one shape to 16 bits, alone or among others."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(
        self,
        function: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function is torch.ops.aten._to_copy.default:
            self.count += self.is_cast(args[0], (kwargs or {}).get("dtype"))
        if function is torch.ops.aten._foreach_copy_.default:
            self.count += sum(self.is_cast(source, copy.dtype) for copy, source in zip(*args, strict=True))
        return function(*args, **(kwargs or {}))

    def is_cast(self, source: torch.Tensor, dtype: torch.dtype | None) -> bool:
        return source.shape == self.shape and source.dtype == torch.float32 and dtype == torch.bfloat16


def test_each_weight_is_cast_once_for_all_micro_batches_and_its_gradients_add_up() -> None:
    from model.casts import StepCasts
    from model.layers import Linear

    layer: Any = Linear(4, 3)
    layer.dtype = torch.bfloat16
    inputs = torch.randn(3, 5, 4, dtype=torch.bfloat16)
    each, counted = [], Casts(layer.weight.shape)
    casts = StepCasts(layer)
    for shared in (False, True):
        layer.weight.grad = None
        counted.count = 0
        with counted:
            if shared:
                casts.make()
            for micro_batch in inputs:
                layer(micro_batch).float().square().sum().backward()
        casts.drop()
        each.append((counted.count, layer.weight.grad))
    (apart, expected), (together, found) = each
    assert (apart, together) == (3, 1)
    assert torch.equal(found, expected)
    assert layer.step_linear is None


@pytest.mark.parametrize("bias", [False, True])
def test_joinable_layers_are_one_product_with_the_gradients_of_each(bias: bool) -> None:
    from model.casts import StepCasts
    from model.layers import Linear, heads_for_one_input

    torch.manual_seed(0)
    model: Any = torch.nn.ModuleList(Linear(8, rows, bias=bias) for rows in (6, 2, 4))
    model.dtype = torch.bfloat16
    x = torch.randn(3, 5, 8, dtype=torch.bfloat16)
    results = []
    for joined in (False, True):
        model.joinable_layers = lambda joined=joined: [list(model)] if joined else []
        casts = StepCasts(model)
        casts.make()
        products: list[Any] = []
        with Products(products):
            outputs = heads_for_one_input(x.requires_grad_(), model, 2)
        loss: Any = sum((output.float() * (index + 1)).square().sum() for index, output in enumerate(outputs))
        loss.backward()
        casts.drop()
        assert len(products) == (1 if joined else 3)
        assert [tuple(output.shape) for output in outputs] == [(3, 5, heads, 2) for heads in (3, 1, 2)]
        results.append([*outputs, *(parameter.grad for parameter in model.parameters()), x.grad])
        model.zero_grad()
        x.grad = None
    *apart, x_apart = results[0]
    *together, x_together = results[1]
    assert all(map(torch.equal, apart, together))
    torch.testing.assert_close(x_together, x_apart, rtol=2e-2, atol=2e-2)
    assert all(parameter.grad is None for parameter in model.parameters()) and model[0].step_linear is None


def test_gradients_of_vectors_of_all_sizes_reach_their_parameters() -> None:
    from model.casts import StepCasts
    from model.layers import LayerNorm

    torch.manual_seed(0)
    model: Any = torch.nn.ModuleList(LayerNorm(size) for size in (3, 8))
    model.dtype = torch.bfloat16
    inputs = [torch.randn(2, 5, size, dtype=torch.bfloat16) for size in (3, 8)]
    gradients, casts = [], StepCasts(model)
    for together in (False, True):
        if together:
            casts.make()
        for micro_batch in range(2):
            outputs = [layer(x[micro_batch]).float() for layer, x in zip(model, inputs, strict=True)]
            sum((output * (index + 1)).square().sum() for index, output in enumerate(outputs)).backward()
        casts.drop()
        gradients.append([parameter.grad for parameter in model.parameters()])
        model.zero_grad()
    assert all(map(torch.equal, *gradients))
    assert all(copy is None for copies in casts.copies.values() for copy in copies.values())  # no graph stays


class Products(TorchDispatchMode):
    def __init__(self, products: list[Any]) -> None:
        super().__init__()
        self.products = products

    def __torch_dispatch__(
        self,
        function: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.products.append(function)
        return function(*args, **(kwargs or {}))


def test_gradients_come_from_the_product_in_float32_where_the_device_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor the product is stood in for: torch has it for CUDA only."""
    from model import casts
    from model.layers import Linear

    monkeypatch.setattr(casts, "_product", lambda left, right: left.float() @ right.float())
    layer: Any = Linear(64, 3)
    layer.dtype = torch.bfloat16
    step = casts.StepCasts(layer)
    step.make()
    x = torch.randn(500, 64, dtype=torch.bfloat16)
    layer(x).sum().backward()
    expected = x.float().sum(0).expand(3, 64)
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-6, atol=1e-4)
    assert not torch.equal(layer.weight.grad, layer.weight.grad.bfloat16().float())


def test_the_gradient_of_a_copy_reaches_its_parameter_before_earlier_layers_run() -> None:
    """Else the 16-bit gradients of all layers exist at once at the end of each backward pass."""
    from model.casts import StepCasts
    from model.layers import Linear

    model: Any = torch.nn.Sequential(Linear(4, 4), Linear(4, 4))
    model.dtype = torch.bfloat16
    order: list[int | str] = []
    for number, layer in enumerate(model):
        layer.weight.register_post_accumulate_grad_hook(lambda _, number=number: order.append(number))
    StepCasts(model).make()
    for _ in range(2):
        inputs = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True)
        inputs.register_hook(lambda _: order.append("input"))
        hidden = model[0](inputs)
        hidden.register_hook(lambda _: order.append("between"))
        model[1](hidden).float().square().sum().backward()
    assert order[:1] == order[4:5] == [1]
    assert order.index("between") < order.index(0)
    assert sorted(order, key=str) == sorted([1, "between", 0, "input"] * 2, key=str)


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Any]:
    """One rank's group, which outlives a test's DDP: freed after its group, DDP sometimes waits for ever."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield {"replicate": SimpleNamespace(get_group=lambda: dist.group.WORLD)}
    dist.destroy_process_group()


def test_gradients_lie_in_the_buckets_of_ddp_from_before_the_first_step(grid: Any) -> None:
    """Beside their buckets they would need the memory twice while micro-batches are added up."""
    from parallelism.data_parallel import replicate_data_parallel

    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    replicate_data_parallel(model, grid)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) == 4 and len({gradient.untyped_storage().data_ptr() for gradient in gradients}) == 1


CROSSES = [(family, variant) for variant in (SINGLE, VARIANTS["DP2"], VARIANTS["PP2"]) for family in ("gpt", "mixture")]
# FSDP2 gathers and casts the experts, of which a rank holds a part only
SHARDED_EXPERTS = [("mixture", VARIANTS["ZeRO 1, EP2 of DP4"])]


@pytest.mark.parametrize("backend, steps, found", [("nccl", 1, ["wait", 1]), ("nccl", 2, []), ("gloo", 1, [])])
def test_ddps_first_buckets_are_let_go_once_where_a_group_keeps_them(
    backend: str, steps: int, found: list[str | int], grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's group is mocked: that it keeps buckets, and gives them back so, shows in rehearsals only."""
    import torch.distributed as dist
    from parallelism import data_parallel

    model: Any = torch.nn.Linear(4, 4)
    runner = data_parallel.replicate_data_parallel(model, grid)
    for _ in range(steps):
        runner(torch.ones(1, 4)).sum().backward()
    done: list[str | int] = []
    group: Any = SimpleNamespace(_wait_for_pending_works=lambda: done.append("wait"))
    runner.process_group = group
    with monkeypatch.context() as patch:
        patch.setattr(dist, "get_backend", lambda group: backend)
        patch.setattr(dist, "all_reduce", lambda tensor, group: done.append(tensor.numel()))
        data_parallel.free_first_buckets(runner)
    assert done == found


@pytest.mark.layouts
@pytest.mark.parametrize(("family", "variant"), CROSSES + SHARDED_EXPERTS, ids=lambda each: getattr(each, "name", each))
def test_a_curve_is_that_of_a_cast_in_each_micro_batch(family: str, variant: Variant, tmp_path: Path) -> None:
    """Of products that are apart: joined ones round elsewhere, and their own test is above."""
    job = small_job(MODELS[family], variant, steps=4, precision="bf16")
    curves = [train(job, planted(tmp_path, "torch", fault)) for fault in (APART, NEVER)]
    assert curves[0] == curves[1]
