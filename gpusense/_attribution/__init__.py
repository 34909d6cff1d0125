"""Whose work a record is: the block that was open when it was launched. Pure, tested with made-up ids.

In: batches of launch ids and the boundaries of blocks. Out: segments of a batch, each with its block. Whatever stands
above, from ``_aggregation`` on, may import it.
"""
