"""Numba: kernels compiled from Python."""
import numpy
from numba import cuda


@cuda.jit
def scale(x, by):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * by + i


x = numpy.arange(10000, dtype=numpy.float64)
there = cuda.to_device(x)
scale[40, 256](there, 3.0)
print("scale", there.copy_to_host().sum(), cuda.get_current_device().compute_capability)
