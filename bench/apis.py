"""Workloads of the APIs beside OpenCL and CUDA: whole programs, and what their calls cost."""

import statistics
import time

import measure
from harness import node
from harness.process import AVIARY, ROOT, Skipped, run

FIGURES = {
    "apis.isal_igzip_ratio": "igzip -1 on 64 MiB of source text, whole program: Aviary time / native time (target <= 1.25)",
    "apis.isal_igzip_heap_ratio": "... with --share-heap",
    "apis.isal_deflate_ratio": "compression at level 1 inside the calls: native time / Aviary time (target >= 0.8)",
    "apis.isal_inflate_ratio": "... decompression",
    "apis.isal_deflate_heap_ratio": "... compression with --share-heap",
    "apis.isal_inflate_heap_ratio": "... decompression with --share-heap",
    "apis.onnxruntime_run_native_us": "ONNX Runtime: a run of a model that adds two numbers, natively",
    "apis.onnxruntime_run_more_us": "... what it costs more with Aviary (target <= 8)",
    "apis.pjrt_dispatch_native_us": "JAX on PJRT's plug-in for the CPU: a jitted call of 8 numbers that is not waited for, natively",
    "apis.pjrt_dispatch_more_us": "... what it costs more with Aviary (target <= 2)",
    "apis.pjrt_blocked_native_us": "... with block_until_ready, natively",
    "apis.pjrt_blocked_more_us": "... what it costs more with Aviary (target <= 10)",
    "apis.pjrt_numpy_native_us": "... with np.asarray, natively, where that copies nothing",
    "apis.pjrt_numpy_more_us": "... what it costs more with Aviary (target <= 20)",
    "apis.pjrt_multiply_ratio": "... two products of matrices of 128 x 128: Aviary time / native time (target <= 1.1)",
    "apis.pjrt_step_ratio": "... a training step of some milliseconds (target <= 1.03)",
}
TEXT_BYTES = 64 << 20
MODEL = "test_data/example ż 大 김.onnx"


def text():
    """Source text of this tree, as often as it takes."""
    file = measure.BUILD / "text"
    if not file.exists() or file.stat().st_size != TEXT_BYTES:
        kinds = ("*.rs", "*.md", "*.c", "*.lapis")
        files = sorted(path for folder in ("crates", "docs", "apis") for kind in kinds for path in (ROOT / folder).rglob(kind))
        content = b"".join(path.read_bytes() for path in files)
        file.write_bytes((content * (TEXT_BYTES // len(content) + 1))[:TEXT_BYTES])
    return file


def seconds(command):
    begin = time.perf_counter()
    run(command)
    return time.perf_counter() - begin


def isal(quick):
    measure.BUILD.mkdir(parents=True, exist_ok=True)
    if not (ROOT / "target/aviary/isal").is_dir():
        raise Skipped("apis/isal is not built: ISA-L is not installed")
    codes, output = measure.BUILD / "codes", measure.BUILD / "text.gz"
    source = ROOT / "apis/isal/tests/codes.c"
    run(["gcc", "-O2", "-I", ROOT / "apis/testapi/tests", "-o", codes, source, "-lisal"])
    ways = {"native": [], "aviary": ["--api", "isal"], "heap": ["--api", "isal", "--share-heap"]}
    whole, inside = {way: [] for way in ways}, {way: [] for way in ways}
    with node.running({}) as server:
        for turn in range((3 if quick else measure.ROUNDS) + 1):
            for way, options in ways.items():
                head = [AVIARY, "run", *options, "--server", server.address, "--"] if options else []
                took = seconds([*head, "sh", "-c", f"igzip -1 -c {text()} >{output}"])
                times = measure.measured([*head, codes, "time", text()])
                # The first turn finds nothing warm.
                if turn > 0:
                    whole[way].append(took)
                    inside[way].append(times)
    whole = {way: statistics.median(times) for way, times in whole.items()}
    inside = {way: measure.medians(times) for way, times in inside.items()}
    figures = {"apis.isal_igzip_ratio": whole["aviary"] / whole["native"],
               "apis.isal_igzip_heap_ratio": whole["heap"] / whole["native"]}
    for what in ("deflate", "inflate"):
        key = f"{what}_ns"
        figures[f"apis.isal_{what}_ratio"] = inside["native"][key] / inside["aviary"][key]
        figures[f"apis.isal_{what}_heap_ratio"] = inside["native"][key] / inside["heap"][key]
    return figures


def onnxruntime(quick):
    measure.BUILD.mkdir(parents=True, exist_ok=True)
    cache = ROOT / "target/cache/onnxruntime"
    if not (ROOT / "target/aviary/onnxruntime").is_dir() or not (cache / "done").exists():
        raise Skipped("apis/onnxruntime is not built: its packages are not there")
    values, model = measure.BUILD / "values", cache / "module" / MODEL
    run(["gcc", "-O2", "-I", ROOT / "apis/testapi/tests", "-I", cache / "include", "-o", values,
         ROOT / "apis/onnxruntime/tests/values.c", "-L", cache / "lib", "-l:libonnxruntime.so.1"])
    environment = {"LD_LIBRARY_PATH": str(cache / "lib")}
    times = {"native": [], "aviary": []}
    with node.running(environment) as server:
        remoted = [AVIARY, "run", "--api", "onnxruntime", "--server", server.address, "--"]
        for turn in range((3 if quick else measure.ROUNDS) + 1):
            for way, head in (("native", []), ("aviary", remoted)):
                took = measure.measured([*head, values, model, "time", "20000"], env=environment)
                # The first turn finds nothing warm.
                if turn > 0:
                    times[way].append(took["run_ns"] / 1000)
    native, aviary = (statistics.median(times[way]) for way in ("native", "aviary"))
    return {"apis.onnxruntime_run_native_us": native, "apis.onnxruntime_run_more_us": aviary - native}


def pjrt(quick):
    packages = ROOT / "target/cache/pjrt/venv"
    plugin = next(packages.glob("lib/python3.*/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"), None)
    if not plugin or not (ROOT / "target/aviary/pjrt").is_dir():
        raise Skipped("apis/pjrt is not built: its packages are not there")
    environment = {"AVIARY_VENDOR_PJRT": str(plugin)}
    program = [packages / "bin/python", ROOT / "bench/pjrt_times.py"]
    ways = {"native": (program, {"PJRT_NAMES_AND_LIBRARY_PATHS": f"aviary:{plugin}", "JAX_PLATFORMS": "aviary"}),
            "aviary": ([AVIARY, "run", "--api", "pjrt", "--", *program], environment)}
    times = {way: [] for way in ways}
    for turn in range((1 if quick else measure.ROUNDS) + 1):
        for way, (command, variables) in ways.items():
            took = measure.measured(command, env=variables)
            # The first turn finds nothing warm.
            if turn > 0:
                times[way].append(took)
    native, aviary = (measure.medians(times[way]) for way in ("native", "aviary"))
    figures = {}
    for what in ("dispatch", "blocked", "numpy"):
        key = f"{what}_ns"
        figures[f"apis.pjrt_{what}_native_us"] = native[key] / 1000
        figures[f"apis.pjrt_{what}_more_us"] = (aviary[key] - native[key]) / 1000
    return figures | {f"apis.pjrt_{what}_ratio": aviary[f"{what}_ns"] / native[f"{what}_ns"] for what in ("multiply", "step")}
