"""``gpusense top``: frames drawn from a monitor's history, and the terminal they are drawn in.

In: samples, of a monitor or a recorded session. Out: lines of text on a screen. Only the verb ``top`` imports it.
"""
