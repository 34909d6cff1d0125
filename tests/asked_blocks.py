"""Blocks whose totals are asked for, without a tracer."""

from weakref import ref


class Asked:
    __slots__ = ("__weakref__", "_totals", "block_id")

    def __init__(self, block_id):
        self.block_id = block_id
        self._totals = None


def watch(pipeline, *block_ids):
    """Blocks by id; they live as long as ``pipeline``."""
    pipeline.asked = {block_id: Asked(block_id) for block_id in block_ids}
    pipeline.watched.blocks.update({block_id: ref(block) for block_id, block in pipeline.asked.items()})
    return pipeline.asked
