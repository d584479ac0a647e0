"""The measurements. Each returns figures by name, or raises Failure."""

import json
import statistics

from harness.process import AVIARY, ROOT, Failure, run

# Where programs that measure are compiled to.
BUILD = ROOT / "target" / "bench"
# Kills of one run.
KILLS = 1000
KILLS_QUICK = 100
# Turns that native and Aviary take.
ROUNDS = 5


def measured(command, **options):
    """The JSON object that a benchmark program prints last."""
    output = run(command, **options).strip()
    try:
        return json.loads(output.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise Failure(f"{command[0]} printed no result: {output[-200:]!r}") from error


def remoted(command, *options):
    return [AVIARY, "run", *options, "--", *command]


def compile_c(name, *flags, output=None):
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / (output or name)
    source = ROOT / "bench" / f"{name}.c"
    run(["gcc", "-O2", "-o", program, source, *flags])
    return program


def medians(results):
    return {key: statistics.median(result[key] for result in results) for key in results[0]}


def pingpong(quick):
    program = compile_c("pingpong")
    result = measured([program, "200000" if quick else "2000000"])
    return {"shm.pingpong_ns": result["round_trip_ns"]}


def test_library():
    """testapi's own library, and the program that times calls of it."""
    directory = BUILD / "testapi"
    run(["sh", ROOT / "apis/testapi/build", directory])
    flags = ["-I", ROOT / "apis/testapi/include", "-L", directory, "-ltestapi"]
    return compile_c("calls", *flags), {"LD_LIBRARY_PATH": str(directory)}


def timed_calls(quick, *options):
    program, environment = test_library()
    command = remoted([program, "20000" if quick else "200000"], "--api", "testapi", *options)
    return medians([measured(command, env=environment) for _ in range(3)])


def calls(quick):
    result = timed_calls(quick)
    figures = {
        "shm.sync_noop_ns": result["sync_ns"],
        "shm.async_issue_ns": result["async_ns"],
        "shm.async_stream_ns": result["stream_ns"],
        "shm.attach_ms": result["attach_ms"],
    }
    # The floor of the same run, so that the ratio compares like with like.
    return pingpong(quick) | figures


def breakdown(quick):
    """Where the time of a synchronous call goes. The ways there and back are measured whole; issuing and handling by
    themselves, as throughput. Nothing is subtracted: both sides work at the same time, so the parts do not add up."""
    _, environment = test_library()
    program = compile_c("breakdown", "-I", ROOT / "apis/testapi/include", "-L", BUILD / "testapi", "-ltestapi")
    command = [program, "300" if quick else "3000"]
    native = measured(command, env=environment)
    remote = medians([measured(remoted(command, "--api", "testapi"), env=environment) for _ in range(3)])
    # The reading of the time is part of what is measured on both sides.
    vendor = max(native["there_ns"] + native["back_ns"] - native["bare_ns"], 0.0)
    issue, handling = remote["issue_ns"], remote["stream_ns"]
    return {
        "breakdown.issue_ns": issue,
        "breakdown.there_ns": remote["there_ns"],
        "breakdown.server_ns": handling,
        "breakdown.vendor_ns": vendor,
        "breakdown.back_ns": remote["back_ns"],
        "breakdown.whole_ns": remote["there_ns"] + remote["back_ns"],
    }


def stream_calls(quick):
    return {"stream.sync_noop_ns": timed_calls(True, "--mirror")["sync_ns"]}


def bulk(quick):
    program = compile_c("bulk", "-lOpenCL")
    command = [program, "0.1" if quick else "0.4"]
    native, aviary = [], []
    for _ in range(3 if quick else ROUNDS):
        native.append(measured(command))
        aviary.append(measured(remoted(command, "--api", "opencl")))
    native, aviary = medians(native), medians(aviary)
    return {f"bulk.{key.removesuffix('_ns')}_ratio": native[key] / aviary[key] for key in native}


def heap(quick):
    """Transfers that the vendor's library makes, out of ordinary memory and out of memory that it sees where it is."""
    command = [compile_c("bulk", "-lOpenCL"), "0.1" if quick else "0.4", "vendor"]
    native, without, shared = [], [], []
    for _ in range(3 if quick else ROUNDS):
        native.append(measured(command))
        without.append(measured(remoted(command, "--api", "opencl")))
        shared.append(measured(remoted(command, "--api", "opencl", "--share-heap")))
    native, without, shared = medians(native), medians(without), medians(shared)
    figures = {}
    for key in native:
        name = key.removesuffix("_ns")
        figures[f"heap.without_{name}_ratio"] = native[key] / without[key]
        figures[f"heap.{name}_ratio"] = native[key] / shared[key]
    return figures


def kills(_quick):
    """What the robustness tests find under load; their status says the same as the number of problems."""
    output = BUILD / "kills.json"
    BUILD.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    command = ["python3", ROOT / "tests/robust/run", "--kills", str(KILLS), "--json", output]
    run(command, timeout=60 + KILLS, statuses=(0, 1))
    try:
        result = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failure(f"tests/robust/run wrote no result: {error}") from error
    return {"kills.count": result["kills"], "kills.problems": result["problems"],
            "kills.slowest_end_s": result["slowest_end_s"]}


def programs(quick):
    """The unmodified programs of the OpenCL tests; their driver knows what they are bound by."""
    driver = ROOT / "apis/opencl/tests/programs.py"
    output = BUILD / "programs.json"
    BUILD.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    # Its status counts the programs that differ: a result too.
    run(["python3", driver, "--json", output, *(["--quick"] if quick else [])], timeout=2400, statuses=range(101))
    try:
        result = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failure(f"{driver.name} wrote no result: {error}") from error
    return {f"programs.{name}": value for name, value in geomeans(result).items()}


def geomeans(result):
    """By what bounds the programs: kernels (compute) or the API itself (calls)."""
    means = result.get("means", {})
    if not means:
        raise Failure("no program gave equal results on both sides")
    named = {"compute": "compute_geomean", "calls": "call_geomean"}
    different = sum(1 for program in result.get("programs", []) if program.get("equal") is False)
    return {figure: means[kind] for kind, figure in named.items() if kind in means} | {"different": different}
