"""Runs one command, with all that it starts, under limits that the load of the machine does not change.

  supervise.py RESULT CPU_SECONDS QUIET_SECONDS COMMAND...

RESULT is the number of a descriptor that gets one line of JSON: status, CPU seconds, wall seconds, why it was cut. The first limit
is of CPU seconds (0: none); the second of a time in which the command prints nothing and hardly wants a CPU. Time in which it waits
for one counts as if it had it: a busy machine may give it less than a hundredth. Whatever is left of the command when it ends or is cut, also in sessions of its own, is killed.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICKS = os.sysconf("SC_CLK_TCK")
# Seconds between two looks at what runs.
LOOK = 1.0
# A command that wants less than this share of one CPU does nothing: it sleeps, or looks now and then for what never comes.
IDLE_SHARE = 0.02


def processes():
    """All processes: pid -> (parent, CPU seconds with those of its children that it has waited for)."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
                found[int(entry)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    return found


def below(ancestor, found):
    """Those of the processes that descend from one."""
    children = {}
    for pid, (parent, _) in found.items():
        children.setdefault(parent, []).append(pid)
    descendants, waiting = [], [ancestor]
    while waiting:
        new = children.get(waiting.pop(), [])
        descendants += new
        waiting += new
    return descendants


def waits_of(pids):
    """Seconds that each thread of these processes has waited for a CPU."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/task/{thread}/schedstat", encoding="utf-8") as file:
                    found[thread] = int(file.read().split()[1]) / 1e9
    return found


def command_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:160]
    return ""


class Quiet:
    """Notices a command that does nothing; `now` in seconds, of any clock that goes forward."""

    def __init__(self, limit, now):
        self.limit, self.since, self.wanted, self.printed = limit, now, 0.0, 0

    def too_long(self, now, wanted, printed):
        """`wanted`: seconds in which it had a CPU or waited for one; `printed`: bytes."""
        if printed != self.printed or wanted - self.wanted >= IDLE_SHARE * self.limit:
            self.since, self.wanted, self.printed = now, wanted, printed
        return now - self.since >= self.limit


class Supervised:
    """The command, as child of this process."""

    def __init__(self, command):
        # Orphans become this process's children, so that nothing is lost.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        signal.signal(signal.SIGTERM, lambda *_: self.die())
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        # CPU seconds of children that were waited for.
        self.waited, self.status = 0.0, None
        # Seconds in which its threads waited for a CPU, and those of each at the last look.
        self.starved, self.waits = 0.0, {}
        # Kept: it would wait for its process when it is forgotten.
        self.process = subprocess.Popen(command, start_new_session=True, preexec_fn=usual_signals)
        self.pid = self.process.pid

    def die(self):
        self.kill()
        os._exit(128 + signal.SIGTERM)

    def wait(self):
        """Takes leave of all children that have ended. True: the command itself is among them."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    break
                self.waited += usage.ru_utime + usage.ru_stime
                if pid == self.pid:
                    self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def look(self):
        """CPU seconds that it has used, and seconds in which it has waited for a CPU."""
        found = processes()
        pids = below(os.getpid(), found)
        waits = waits_of(pids)
        self.starved += sum(max(0.0, wait - self.waits.get(thread, 0.0)) for thread, wait in waits.items())
        self.waits = waits
        return self.waited + sum(found[pid][1] for pid in pids), self.starved

    def rest(self):
        return below(os.getpid(), processes())

    def kill(self):
        """Ends all that runs. What does not die within ten seconds (a process in the kernel) is left."""
        deadline = time.monotonic() + 10
        while (rest := self.rest()) and time.monotonic() < deadline:
            for pid in rest:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait([signal.SIGCHLD], 0.05)
            self.wait()


def why_cut(supervised, cpu_limit, quiet):
    """Waits for the end of the command; why it must be ended before, or None."""
    while True:
        signal.sigtimedwait([signal.SIGCHLD], LOOK)
        if supervised.wait():
            return None
        cpu, starved = supervised.look()
        if cpu_limit and cpu > cpu_limit:
            return f"it has used {cpu:.0f} s of CPU, its limit is {cpu_limit:g} s"
        if quiet.too_long(time.monotonic(), cpu + starved, os.fstat(1).st_size):
            return f"for {quiet.limit:g} s it has printed nothing and wanted a CPU for less than {IDLE_SHARE * quiet.limit:.0f} s"


def usual_signals():
    """In the part's process: a run in the background or under nohup ignores signals that tests send, and all children would."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def main(result, cpu_limit, quiet_seconds, *command):
    began = time.monotonic()
    os.set_inheritable(int(result), False)
    try:
        supervised = Supervised(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        os.write(int(result), json.dumps({"status": 127, "cpu": 0.0, "wall": 0.0, "cut": None}).encode())
        return 0
    cut = why_cut(supervised, float(cpu_limit), Quiet(float(quiet_seconds), began))
    if cut:
        print(f"\nFAIL stopped: {cut}. What ran:", flush=True)
        for pid in supervised.rest():
            print(f"     {pid} {command_of(pid)}", flush=True)
    supervised.kill()
    # Status 124 is that of timeout(1).
    told = {"status": 124 if cut else supervised.status, "cpu": supervised.waited, "wall": time.monotonic() - began, "cut": cut}
    os.write(int(result), json.dumps(told).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
