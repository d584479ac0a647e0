"""A machine of the cluster: namespaces of this one for its network, mounts and processes.

All that runs in it ends with its first process, and with that its mounts and interfaces go, too. Its /run, /var/lib and /var/log are
folders of the cluster's own, so that everything lies where it does on a machine of its own.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from harness.process import HANG, Wrong, children, wait_until
from harness.supervise import processes

HERE = Path(__file__).resolve().parent
# Folders of the machine's own, and where they are seen.
OWN = {"lib": "/var/lib", "run": "/run", "log": "/var/log"}
CGROUPS = Path("/sys/fs/cgroup")


class Machine:
    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.folder = cluster / name
        self.log = cluster / "log"

    @property
    def pid_file(self):
        return self.cluster / "pid" / self.name

    @property
    def init(self):
        return int(self.pid_file.read_text())

    def start(self):
        for folder in (self.log, self.pid_file.parent, *(self.folder / name for name in OWN)):
            folder.mkdir(parents=True, exist_ok=True)
        with open(self.log / f"{self.name}-holder", "w", encoding="utf-8") as log:
            outer = self.unshared(log)
        wait_until(HANG, f"{self.name} has a first process", lambda: [c for c in children(outer.pid) if holds(c)])
        self.pid_file.write_text(str(children(outer.pid)[0]))
        (self.pid_file.parent / f"{self.name}.outer").write_text(str(outer.pid))
        binds = "".join(f"mount --bind {self.folder}/{name} {place}; " for name, place in OWN.items())
        self.call("sh", "-ec", f"{binds} mount --make-rshared /; ip link set lo up; echo 1 >/proc/sys/net/ipv4/ip_forward")

    @staticmethod
    def unshared(log):
        return subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
             "python3", HERE / "holder.py"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )

    def words(self, command):
        return ["nsenter", "-t", str(self.init), "-n", "-m", "-p", "--", *map(str, command)]

    def call(self, *command, check=True, **options):
        """Runs a command in it; its output."""
        options = {"timeout": HANG, **options}
        done = subprocess.run(self.words(command), capture_output=True, text=True, check=False, **options)
        if check and done.returncode != 0:
            raise Wrong(f"{self.name}: {' '.join(map(str, command))[:300]}: status {done.returncode}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
        return done.stdout

    def spawn(self, name, *command, environment=()):
        """Starts a daemon in it, whose output goes to a log."""
        with open(self.log / f"{self.name}-{name}", "a", encoding="utf-8") as log:
            process = subprocess.Popen(
                self.words(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **dict(environment)},
            )
        wait_until(HANG, f"{name} has started", lambda: children(process.pid) or process.poll() is not None)
        (self.pid_file.parent / f"{self.name}.{name}").write_text(str(children(process.pid)[0] if process.poll() is None else 0))
        return process

    def pid_of(self, name):
        return int((self.pid_file.parent / f"{self.name}.{name}").read_text())

    def cpu_seconds(self, name):
        """Of a daemon of it; None: it has ended."""
        with contextlib.suppress(FileNotFoundError):
            pid = self.pid_of(name)
            _, seconds = processes().get(pid, (0, None))
            return None if gone(pid) else seconds
        return None

    def said(self, name):
        """The end of its log."""
        return (self.log / f"{self.name}-{name}").read_text(encoding="utf-8", errors="replace")[-1500:]

    def kill(self, name, how=signal.SIGKILL):
        """Ends a daemon of it."""
        pid = self.pid_of(name)
        os.kill(pid, how)
        wait_until(HANG, f"{name} of {self.name} has ended", lambda: gone(pid))

    def stop(self):
        """Ends everything in it, waits for that, and removes its groups."""
        with contextlib.suppress(FileNotFoundError):
            outer = int((self.pid_file.parent / f"{self.name}.outer").read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
            wait_until(HANG, f"{self.name} has ended", lambda: gone(outer))
        remove_groups(self.group)

    @property
    def group(self):
        return f"aviary-{self.cluster.name}-{self.name}"

    def make_groups(self):
        """The kubelet wants its root in every hierarchy."""
        for hierarchy in hierarchies():
            if hierarchy.name != "unified":
                (hierarchy / self.group).mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            value = (CGROUPS / "cpuset" / name).read_text()
            (CGROUPS / "cpuset" / self.group / name).write_text(value)


def holds(pid):
    with contextlib.suppress(OSError):
        return b"holder.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def gone(pid):
    """No thread of it is left: the last one closes its sockets."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        dead = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
        return dead and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def hierarchies():
    return [path for path in sorted(CGROUPS.iterdir()) if path.is_dir() and not path.is_symlink()]


def remove_groups(name):
    for hierarchy in hierarchies():
        for _ in range(50):
            for folder, _, _ in os.walk(hierarchy / name, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            if not (hierarchy / name).exists():
                break
            time.sleep(0.1)


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
