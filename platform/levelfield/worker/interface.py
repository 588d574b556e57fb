"""The names that a framework's implementation imports from the package.

No module of the package has one of these names: once imported, the module would hide the function.
"""

from .architecture import head_size, is_mixture, is_rotated, layer_window, part
from .batches import Batch, Batches
from .capture import Capture
from .checksum import checksum_slice
from .division import check_context_parallel, check_pipeline, check_tensor_parallel
from .events import Recorder
from .faults import CorpusError, JobError, NonFinite, StorageError, Unsupported, WorkerError
from .init import Initializer
from .job import coordinates, load_job
from .loop import train_steps
from .offers import check_layout, check_no_graph, check_parts, check_recomputed_layers
from .own_work import OwnWork
from .parameters import ParameterSpec
from .peak_memory import process_memory
from .process import run
from .product_rates import best_product_rate, probe_options
from .randomness import dropout_seed
from .rotary import rotary_magnitude, scaled_frequencies
from .schedule import learning_rate
from .spot_check import SpotCheck

__all__ = [
    "Batch",
    "Batches",
    "Capture",
    "CorpusError",
    "Initializer",
    "JobError",
    "NonFinite",
    "OwnWork",
    "ParameterSpec",
    "Recorder",
    "SpotCheck",
    "StorageError",
    "Unsupported",
    "WorkerError",
    "best_product_rate",
    "check_context_parallel",
    "check_layout",
    "check_no_graph",
    "check_parts",
    "check_pipeline",
    "check_recomputed_layers",
    "check_tensor_parallel",
    "checksum_slice",
    "coordinates",
    "dropout_seed",
    "head_size",
    "is_mixture",
    "is_rotated",
    "layer_window",
    "learning_rate",
    "load_job",
    "part",
    "probe_options",
    "process_memory",
    "rotary_magnitude",
    "run",
    "scaled_frequencies",
    "train_steps",
]
