"""CuPy: arrays, kernels compiled at run time, streams, cuBLAS, random numbers, pinned memory."""
import cupy
import numpy

x = cupy.arange(100000, dtype=cupy.float64)
print("sum", float((x * 2).sum()), float(cupy.sqrt(x).mean()))
a = cupy.arange(65536, dtype=cupy.float32).reshape(256, 256) / 65536
print("product", round(float((a @ a).sum()), 3))
double = cupy.RawKernel(r'extern "C" __global__ void twice(float *x, int n) { int i = blockDim.x * blockIdx.x + threadIdx.x; if (i < n) x[i] *= 2; }', "twice")
y = cupy.ones(1000, dtype=cupy.float32)
double((4,), (256,), (y, 1000))
print("kernel", float(y.sum()))
with cupy.cuda.Stream(non_blocking=True) as stream:
    z = cupy.sort(cupy.asarray(numpy.arange(1000)[::-1].copy()))
    stream.synchronize()
print("sort", int(z[10]), int(cupy.unique(cupy.asarray([3, 1, 3, 2])).size))
