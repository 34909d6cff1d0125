"""Functions of the CUDA driver and runtime in which the calling thread waits for the device, by CUPTI's ids. Data only.

Each has the name that cuptiGetCallbackName gives it; ``tests/backends/cupti/test_wheels.py`` asks the real libraries.
``_ptsz`` and ``_ptds`` are what a program calls that was compiled for a default stream a thread.
"""

DOMAIN_DRIVER, DOMAIN_RUNTIME = 1, 2

DRIVER = {
    17: "cuCtxSynchronize",
    121: "cuEventSynchronize",
    126: "cuStreamSynchronize",
    276: "cuMemcpyHtoD_v2",
    278: "cuMemcpyDtoH_v2",
    287: "cuMemcpy2D_v2",
    288: "cuMemcpy2DUnaligned_v2",
    290: "cuMemcpy3D_v2",
    305: "cuMemcpy",
    397: "cuMemcpyHtoD_v2_ptds",
    398: "cuMemcpyDtoH_v2_ptds",
    405: "cuMemcpy2D_v2_ptds",
    406: "cuMemcpy2DUnaligned_v2_ptds",
    407: "cuMemcpy3D_v2_ptds",
    408: "cuMemcpy_ptds",
    440: "cuStreamSynchronize_ptsz",
    800: "cuCtxSynchronize_v2",  # 13.0
}

RUNTIME = {
    31: "cudaMemcpy_v3020",
    32: "cudaMemcpy2D_v3020",
    39: "cudaMemcpyToSymbol_v3020",
    40: "cudaMemcpyFromSymbol_v3020",
    126: "cudaThreadSynchronize_v3020",
    131: "cudaStreamSynchronize_v3020",
    137: "cudaEventSynchronize_v3020",
    144: "cudaMemcpy3D_v3020",
    165: "cudaDeviceSynchronize_v3020",
    215: "cudaMemcpy_ptds_v7000",
    216: "cudaMemcpy2D_ptds_v7000",
    223: "cudaMemcpyToSymbol_ptds_v7000",
    224: "cudaMemcpyFromSymbol_ptds_v7000",
    239: "cudaStreamSynchronize_ptsz_v7000",
    245: "cudaMemcpy3D_ptds_v7000",
    534: "cudaExecutionCtxSynchronize_v13010",  # 13.1
}

#: Id → first release that knows it, where that is not the oldest that is read.
SINCE = {(DOMAIN_DRIVER, 800): "13.0", (DOMAIN_RUNTIME, 534): "13.1"}

#: (domain, id) of every function.
CALLS = tuple([(DOMAIN_DRIVER, number) for number in DRIVER] + [(DOMAIN_RUNTIME, number) for number in RUNTIME])
