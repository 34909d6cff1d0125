"""``gpusense top``: frames drawn from a monitor's history, and the terminal they are drawn in."""
