"""The C libraries as facts: their names, how they are found, prototypes, codes, structures, and machine code for them.

In: names and paths. Out: bound functions, and for each that cannot be had the reason. Behaviour lives in ``backends``;
any room above may import this one.
"""
