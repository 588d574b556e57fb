"""A store in which every other rank has said already what is asked for: for one rank of a large world."""

import ctypes
import datetime

import torch.distributed as dist
from torch.distributed import distributed_c10d

KEPT = []
ANSWER = b"7" * 128  # to what nobody set; an identity of NCCL is 128 bytes

SIGNALS = ("exception_dump", "remote_error")  # that another rank has failed: none has


class AnsweringStore(dist.Store):
    def __init__(self, world):
        super().__init__()
        self.world, self.kept, self.wait_time = world, {}, datetime.timedelta(seconds=60)

    def set(self, key, value):
        self.kept[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key):
        return self.kept.get(key, ANSWER)

    def add(self, key, amount):
        self.kept[key] = str(int(self.kept.get(key, b"0")) + amount).encode()
        return self.world

    def compare_set(self, key, expected, desired):
        self.set(key, desired)
        return self.kept[key]

    def wait(self, *keys_and_time):
        pass

    def check(self, keys):
        return not any(signal in key for key in keys for signal in SIGNALS)

    def delete_key(self, key):
        return self.kept.pop(key, None) is not None

    def num_keys(self):
        return len(self.kept)

    def set_timeout(self, wait_time):
        self.wait_time = wait_time

    def has_extended_api(self):
        return False

    def clone(self):
        return self


def stand_alone(world):
    """Have torch's default group meet at such a store, and pipelines take the others' agreement as given."""
    import torch
    from torch.distributed.pipelining import stage

    real, store = dist.init_process_group, AnsweringStore(world)
    KEPT.append(store)  # torch keeps its own half only, which cannot answer without this one

    def init_process_group(backend=None, init_method=None, **more):
        return real(backend, store=store, **{k: v for k, v in more.items() if k != "store"})

    def agreed(self, *arguments, **named):
        return torch.ones(1, dtype=torch.int32)

    dist.init_process_group = init_process_group
    tell_splits(ctypes.CDLL(None))
    if hasattr(stage.PipelineStage, "_warmup_backward_result"):
        stage.PipelineStage._warmup_backward_result = agreed


def tell_splits(library):
    """Tell the stand-in its rank and the size of each group that torch splits off, which only the others' calls say."""
    new, split = distributed_c10d._new_process_group_helper, dist.ProcessGroup.split_group

    def new_group(size, rank, *arguments, **named):
        library.standin_next_split(rank, size)
        return new(size, rank, *arguments, **named)

    def split_group(self, ranks, *arguments, **named):
        members = sorted(ranks)
        library.standin_next_split(members.index(self.rank()) if self.rank() in members else 0, len(members))
        return split(self, ranks, *arguments, **named)

    distributed_c10d._new_process_group_helper = new_group
    dist.ProcessGroup.split_group = split_group
