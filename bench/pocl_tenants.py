"""The same tenants with OpenCL kernels on PoCL, whose device is this machine's first processor. The tenants, the node and its
API servers' own threads have the others: programs do not run on a device.

Such a device has no log. Its time is counted in work: a kernel of 207 us is as many turns of a loop as take 207 us
natively when nobody else is there, one launch after the other. A launch that has come to its end was that much device
time, whatever it took; so time that the device stood still, or lost to others, is missing and shows as overhead.
"""

import json
import os
import shutil
import time
from dataclasses import replace

import measure
from harness.accelerator import RECORD, Stage
from harness.process import APIS, AVIARY, Failure, run

# Launches per measurement: as many as take this long, in microseconds.
CALIBRATION_US = 200_000
ROUNDS = 5
# How often it is read what an API server has used of the processors, and how long before the measured time begins it is asked
# which processes those are, in nanoseconds.
SAMPLE = 500_000_000
LEAD = 200_000_000
# One thread that computes, on the first processor.
DEVICE = {"POCL_MAX_PTHREAD_COUNT": "1", "POCL_AFFINITY": "1"}


def sleep_until(when):
    time.sleep(max(0, when - time.monotonic_ns()) / 1e9)


def processor_clock(pid):
    """The clock of what all threads of a process have used of the processors: clock_getcpuclockid(3), which Python lacks."""
    return (~pid << 3) | 2


class PoclStage(Stage):
    """A folder with the program, and what its kernels cost here."""

    guest_library = "opencl/libOpenCL.so.1"
    # Everybody compiles what it launches, one after the other; before the time begins, not in it.
    start_up = 6.0
    # A processor is not as fast in one second as in the next, by several percent.
    turns = (10,) * 8

    def prepare(self):
        if os.cpu_count() < 2:
            raise Failure("the device is a processor of its own: two are needed")
        self.programs.mkdir()
        # Our library names no versions of its symbols; a program that was linked with another would complain.
        library = APIS / self.guest_library
        shutil.copy(measure.compile_c("occupy", library), self.programs)
        self.cache = self.folder / "cache"
        self.cache.mkdir()
        self.sizes = {}
        self.idle_ns = self.launch_ns(0, 200)
        turns = 1000
        while self.launch_ns(turns, 10) < 20e6:
            turns *= 2
        self.turns_per_ns = turns / (self.launch_ns(turns, 10) - self.idle_ns)

    def launch_ns(self, turns, launches):
        """One launch of so many turns among others, natively: the fastest of some rounds."""
        command = [self.programs / "occupy", "calibrate", str(turns), str(launches)]
        return min(measure.measured(command, env=self.vendor_variables(None))["ns"] for _ in range(ROUNDS))

    def size(self, kernel_us):
        """Turns of a kernel that takes so long, and the nanoseconds that it takes exactly."""
        if kernel_us not in self.sizes:
            turns = max(0, int((kernel_us * 1000 - self.idle_ns) * self.turns_per_ns))
            launches = int(max(5, min(500, CALIBRATION_US / kernel_us)))
            self.sizes[kernel_us] = turns, int(self.launch_ns(turns, launches))
        return self.sizes[kernel_us]

    def program(self, number, load, begin, end_at, device):
        turns, nanoseconds = self.size(load.kernel_us)
        log = device / f"{number}.log"
        return [self.programs / "occupy", number, turns, nanoseconds, load.batch, load.pause_us, begin, end_at, log]

    def vendor_variables(self, _device):
        return {**DEVICE, "POCL_CACHE_DIR": str(self.cache)}

    def native_variables(self, device):
        # Another user's compiled kernels cannot be read.
        return {**DEVICE, "POCL_CACHE_DIR": str(device / "cache")}

    def beside_the_device(self):
        return ["taskset", "-c", f"1-{os.cpu_count() - 1}"]

    def run(self, scheduler, tenants, seconds, **options):
        # Calibrated before anybody uses the processors.
        for tenant in tenants:
            self.size(tenant.load.kernel_us)
        others = os.cpu_count() - 1
        placed = [replace(t, cpu=1 + t.cpu % others) if t.cpu >= 0 else t for t in tenants]
        return super().run(scheduler, placed, seconds, **options)

    def observe(self, node, tenants, begin, end):
        sleep_until(begin - LEAD)
        report = json.loads(run([AVIARY, "ps", "--json", "--server", node.address]))[0]
        clocks = {session["tenant"]: processor_clock(session["server"]) for session in report["sessions"]}
        used = {}
        for boundary in range(begin, end + 1, SAMPLE):
            sleep_until(boundary)
            used[boundary] = [time.clock_gettime_ns(clocks[f"t{i}"]) for i in range(len(tenants))]
        return used

    def new_device(self):
        self.runs += 1
        logs = self.folder / f"logs.{self.runs}"
        logs.mkdir()
        logs.chmod(0o777)
        return logs

    @staticmethod
    def records(device):
        found = [record[:3] for log in device.glob("*.log") for record in RECORD.iter_unpack(log.read_bytes())]
        if not found:
            raise Failure("no tenant wrote down what it did")
        return sorted(found), True
