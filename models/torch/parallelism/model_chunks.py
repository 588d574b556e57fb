"""The model chunks that a rank of an interleaved pipeline holds. Without interleaving its model is one."""

from itertools import chain


class ModelChunks:
    """Several model chunks as one model: the modules and parameters of all. Parameters bear canonical names, so those
    of two chunks differ."""

    def __init__(self, chunks):
        self.chunks = chunks

    @property
    def dtype(self):
        return self.chunks[0].dtype

    def modules(self):
        return chain.from_iterable(chunk.modules() for chunk in self.chunks)

    def named_modules(self):
        return chain.from_iterable(chunk.named_modules() for chunk in self.chunks)

    def named_parameters(self):
        return chain.from_iterable(chunk.named_parameters() for chunk in self.chunks)


def chunks_of(model):
    """The chunks of a model, or of what is called in its place; a whole model or stage is one."""
    return getattr(model, "chunks", [model])
