"""Launches of Triton's kernels without what Triton looks up for each: on the host two thirds of a launch's time."""

from functools import partial

import triton
from torch import Tensor

# from this version on a compiled kernel takes all arguments, constants too
TAKES_CONSTANTS = tuple(int(number) for number in triton.__version__.split(".")[:2]) >= (3, 4)


class QuickLaunch:
    """A kernel of Triton, launched as usual: kernel[grid](tensors and numbers, then CONSTANT=... and options).

    Triton compiles a kernel for what it may assume of its arguments: dtypes, pointers and numbers that are multiples of
    16, numbers that are 1. Arguments of one kind have all of that in common, so they have one compiled kernel, of
    whatever grid: that of an expert changes with its tokens. The process has one device.
    """

    def __init__(self, kernel):
        self.kernel, self.compiled = kernel, {}

    def __getitem__(self, grid):
        return partial(self.launch, grid)

    def launch(self, grid, *arguments, **constants):
        kind = [(value.dtype, value.data_ptr() & 15) if isinstance(value, Tensor) else value for value in arguments]
        kind = (*kind, *constants.values())
        if kind in self.compiled:
            compiled, values = self.compiled[kind]
            compiled[(*grid, 1, 1)](*arguments, *values)
            return
        compiled = self.kernel[grid](*arguments, **constants)
        if compiled is not None and TAKES_CONSTANTS:  # the interpreter compiles nothing
            values = [constants[name] for name in self.kernel.arg_names[len(arguments) :]]
            self.compiled[kind] = compiled, values
