"""Which line of Python a synchronising CUDA call came from; on only where it was asked for."""
