"""One proof, in a process of its own, with the interpreter that has yosys: prove.py JOB (JSON). Prints the tool's log.

A failed proof would end the interpreter, so nothing here verifies: the caller reads the log.
"""

import json
import sys

from pyosys import libyosys as yosys

# What is printed before the log of each mode.
MODE = "aviary mode:"
OPTIONS = {"induction": "", "step": "-tempinduct-inductonly", "bounded": "-tempinduct-baseonly"}


def main():
    job = json.loads(sys.argv[1])
    design = yosys.Design()

    def run(command):
        yosys.run_pass(command, design)

    parameters = " ".join(f"-G {name}={value}" for name, value in job["parameters"].items())
    run(f"read_slang --top {job['top']} {' '.join('-D ' + define for define in job['defines'])} -I {job['include']} {parameters} {' '.join(job['files'])}")
    # A signal of a proof that nothing drives is any value in any cycle.
    run("setundef -undriven -anyseq")
    run(f"prep -top {job['top']} -flatten")
    run("memory_map")
    run("chformal -lower")
    run("opt -full")
    for mode, steps in job["modes"]:
        print(MODE, mode, flush=True)
        claim = "-prove f_reached 0" if any(define.startswith("REACH=") for define in job["defines"]) else "-prove-asserts"
        run(f"sat -tempinduct {OPTIONS[mode]} {claim} -set-assumes -seq 1 -maxsteps {steps} -timeout {job['timeout']}")


if __name__ == "__main__":
    main()
