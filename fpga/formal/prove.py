"""One proof, in a process of its own, with the interpreter that has yosys: prove.py JOB (JSON). Prints the tool's log.

A failed proof would end the interpreter, so nothing here verifies: the caller reads the log.
"""

import json
import sys

from pyosys import libyosys as yosys


def main():
    job = json.loads(sys.argv[1])
    design = yosys.Design()

    def run(command):
        yosys.run_pass(command, design)

    parameters = " ".join(f"-G {name}={value}" for name, value in job["parameters"].items())
    run(f"read_slang --top {job['top']} {' '.join('-D ' + define for define in job['defines'])} -I {job['include']} {parameters} {' '.join(job['files'])}")
    run(f"prep -top {job['top']} -flatten")
    run("memory_map")
    run("chformal -lower")
    run("opt -full")
    base = "" if job["mode"] == "induction" else "-tempinduct-baseonly "
    run(f"sat -tempinduct {base}-prove-asserts -set-assumes -seq 1 -maxsteps {job['steps']} -timeout {job['timeout']}")


main()
