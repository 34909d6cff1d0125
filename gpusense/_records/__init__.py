"""The data of the package: records, samples, the protocols of sources, and their forms in JSON.

In: values of any kind. Out: checked named tuples with units in their names.
Every room above ``_runtime`` may import it.
"""
