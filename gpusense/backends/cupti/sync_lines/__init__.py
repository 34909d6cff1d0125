"""From which lines of Python synchronising CUDA calls are made; on only where that was asked for.

In: CUPTI's one subscription, through an activity source. Out: (correlation id, line) of each call. ``code`` is the
machine code that notes lines in the middle of a call, ``reader`` reads what it notes; ``..activity`` alone imports it.
"""
