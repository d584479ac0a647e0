"""What a result was measured on."""

import os
import platform
import time


def load():
    return round(os.getloadavg()[0], 2)


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def describe():
    return {
        "cpu": processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "system": f"Linux {platform.release()}",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "unix_time": int(time.time()),
        "load": load(),
    }
