"""The code inside a training process: the job, the data, the initial weights, the learning rate, the events.

It uses the standard library and numpy only, in the syntax of Python 3.8. Vendors' images have old Pythons
and none of the platform's dependencies. Every framework's implementation imports this package and nothing
else of the platform, so the work is identical in all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .interface import *  # noqa: F403 (the names are listed there)
else:

    def __getattr__(name: str) -> object:
        """Return a name of `interface`, which imports numpy; the platform reads the rules of division without it."""
        return getattr(import_module(__name__ + ".interface"), name)
