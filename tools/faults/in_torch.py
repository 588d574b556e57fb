"""Every planted fault of the torch implementation, in the order of the table in docs/alignment.md."""

from __future__ import annotations

from faults.in_layouts import LAYOUTS
from faults.in_model import ATTENTION, LAYERS, POSITIONS, WEIGHTS
from faults.in_optimizer import ADAM, DECAY
from faults.in_training import DATA_AND_LOSS, GRADIENTS, SCHEDULE

FAULTS = (*ATTENTION, *POSITIONS, *LAYERS, *WEIGHTS, *DATA_AND_LOSS, *GRADIENTS, *LAYOUTS, *DECAY, *ADAM, *SCHEDULE)
