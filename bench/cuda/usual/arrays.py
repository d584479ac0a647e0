"""CuPy."""
import cupy
from _loop import run

run(lambda: float(cupy.linalg.norm(cupy.arange(10000, dtype="f4"))))
