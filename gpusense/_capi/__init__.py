"""Facts of the C libraries: names, search, prototypes, codes. Behaviour lives in ``backends/``."""
