"""`aviary devices`: what there is without a session, what is given away, and what is wrong."""

import json
import os
import subprocess

from granting import granting, holding, wait_for_sessions
from harness.process import AVIARY, HANG, Wrong, wait_until


def listed(tools, *options, health=None, api="testapi"):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tools.vendor), **({"TESTAPI_HEALTH": health} if health else {})}
    command = [AVIARY, "devices", "--api", api, "--json", *map(str, options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
    if done.returncode:
        raise Wrong(f"{command}: {done.returncode} {done.stderr}")
    return json.loads(done.stdout)


def without_a_node(tools):
    devices = listed(tools, "--server", f"unix:{tools.directory}/none.sock")
    names = [device["name"] for device in devices]
    if "testapi accelerator" not in names or len(names) < 3 or len(set(names)) != len(names):
        raise Wrong(f"{devices}")
    if not all(device["healthy"] and device["node"] is None and device["api"] == "testapi" for device in devices):
        raise Wrong(f"{devices}")


def unhealthy(tools):
    name = listed(tools)[0]["name"]
    lost = {device["name"]: device for device in listed(tools, health=name)}
    if lost[name]["healthy"] or "is lost" not in lost[name]["reason"] or not lost["testapi accelerator"]["healthy"]:
        raise Wrong(f"{lost}")
    (crashed,) = listed(tools, health="crash")
    if crashed["name"] or crashed["healthy"] or "ends its process" not in crashed["reason"]:
        raise Wrong(f"{crashed}")


def given_away(tools):
    """Grants are summed on the devices that they may use, and use is what the accounts say."""
    with granting(tools) as node:
        node.grant("a", "--share", "30", "--limit", "device_memory=8M")
        node.grant("b", "--share", "20", "--limit", "device_memory@held=4M", "--only-device", "held")
        with holding(node, node.socket_of("a")):
            wait_for_sessions(node, "a", 1)
            found = {device["name"]: device["node"] for device in listed(tools, "--server", node.address)}
        if found["testapi accelerator"] != {"grants": 1, "granted_share": 30, "granted_memory": 8 << 20, "used_memory": 0}:
            raise Wrong(f"{found}")
        text = node.command("devices", "--api", "testapi")
        if len(text.splitlines()) != len(found) or "granted_share=30%" not in text:
            raise Wrong(text)


def memory_given_once(tools):
    """Of a device that node.toml does not name, too, once its library was asked how much it has."""
    with granting(tools) as node:
        def known():
            devices = node.ask("devices")["devices"] or []
            return next((device for device in devices if device["api"] == "opencl"), None)

        wait_until(HANG, "its devices are listed", known)
        name, half = known()["name"], known()["memory"] // 2
        node.grant("a", "--limit", f"device_memory@{name}={half}")
        said = node.grant("b", "--limit", f"device_memory@{name}={half + 2}", status=1)
        if name not in said or "memory" not in said:
            raise Wrong(said)
        node.grant("b", "--limit", f"device_memory@{name}={half}")
        node.grant("c", "--share", "10")
        node.grant("d", "--limit", f"device_memory@{name}={half}", "--overcommit")


def of_opencl(tools):
    """What clinfo shows of the device."""
    devices = listed(tools, api="opencl")
    told = subprocess.run(["clinfo", "--raw"], capture_output=True, text=True, timeout=HANG, check=False).stdout
    value = {line.split()[1]: " ".join(line.split()[2:]) for line in told.splitlines() if line.startswith("[") and len(line.split()) > 2}
    first = devices[0]
    if not first["name"] or first["name"][:60] not in value["CL_DEVICE_NAME"]:
        raise Wrong(f"{devices} {value.get('CL_DEVICE_NAME')}")
    expected = (int(value["CL_DEVICE_GLOBAL_MEM_SIZE"]), value["CL_DRIVER_VERSION"], True)
    if (first["memory"], first["driver"], first["healthy"]) != expected:
        raise Wrong(f"{first} {expected}")


CASES = {
    "devices without a node": without_a_node,
    "devices that are not healthy": unhealthy,
    "devices given away": given_away,
    "memory is given once": memory_given_once,
    "devices of opencl": of_opencl,
}
