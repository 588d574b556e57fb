"""Launches of Triton's kernels without what Triton looks up for each: on the host two thirds of a launch's time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import triton
from torch import Tensor
from triton.runtime import driver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from triton.runtime import JITFunction

# from this version on a compiled kernel is run with all arguments, constants too
RUNS_WITH_CONSTANTS = tuple(int(number) for number in triton.__version__.split(".")[:2]) >= (3, 4)


class QuickLaunch:
    """A kernel of Triton, launched as usual: kernel[grid](tensors and numbers, then CONSTANT=... and options).

    Triton compiles a kernel for what it may assume of its arguments: dtypes, pointers and numbers that are multiples of
    16, numbers that are 1. Arguments of one kind have all of that in common, so they have one compiled kernel, of
    whatever grid: that of an expert changes with its tokens. The process has one device. A compiled kernel is run as
    torch's compiler does it, so hooks that a profiler sets in Triton see the first launch only.
    """

    def __init__(self, kernel: JITFunction) -> None:
        self.compiled: dict[Sequence[object], tuple[Any, ...]]
        self.kernel, self.compiled = kernel, {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self.launch, grid)

    def launch(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Run the kernel. arguments: tensors, numbers, and None in place of a tensor."""
        kind: Sequence[object] = [
            (value.dtype, value.data_ptr() & 15) if isinstance(value, Tensor) else value for value in arguments
        ]
        kind = (*kind, *constants.values())
        if kind in self.compiled:
            run, function, metadata, current_stream, device, values = self.compiled[kind]
            x, y, z = (*grid, 1, 1)[:3]
            run(x, y, z, current_stream(device), function, metadata, None, None, None, *arguments, *values)
            return
        compiled = self.kernel[grid](*arguments, **constants)
        if compiled is not None and RUNS_WITH_CONSTANTS:  # the interpreter compiles nothing
            stream = driver.active.get_current_stream, driver.active.get_current_device()
            values = [constants[name] for name in self.kernel.arg_names[len(arguments) :]]
            self.compiled[kind] = compiled.run, compiled.function, compiled.packed_metadata, *stream, values
