"""Threads inside calls that only wait do not keep a session where it is: the calls are made again in the new API server."""

import subprocess

from harness.node import running
from harness.process import AVIARY, HANG, ROOT, Skipped, Wrong, run
from operator_cases import migrate, sessions

MOVES = 3


def look(program):
    """The program makes calls, whatever its other threads wait for."""
    program.stdin.write("look\n")
    program.stdin.flush()
    return program.stdout.readline()


def results(program):
    shown, errors = program.communicate(timeout=HANG)
    return program.returncode, shown, errors


def start(*command):
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def waits_are_made_again(tools):
    source, built = ROOT / "tests/moving/waits.c", tools.program("waits")
    try:
        run(["gcc", "-O1", "-pthread", "-o", built, source, "-lOpenCL"])
    except Wrong as error:
        raise Skipped("no OpenCL to link with") from error
    with running({}) as node:
        programs = [start(built), start(AVIARY, "run", "--api", "opencl", "--server", node.address, "--", built)]
        lines = [[program.stdout.readline()] for program in programs]
        if lines[0] != ["ready\n"]:
            raise Skipped(f"no OpenCL device: {results(programs[0])}")
        for count in range(MOVES + 1):
            for program, seen in zip(programs, lines, strict=True):
                seen.append(look(program))
            if count == MOVES:
                break
            (session,) = sessions(node, "opencl")
            status, answer = migrate(node, session["session"])
            if status != 0 or "moved" not in answer:
                raise Wrong(f"move {count}: {answer}")
        native, remote = (results(program) for program in programs)
        if native[:2] != remote[:2] or lines[0] != lines[1]:
            raise Wrong(f"natively {lines[0]} {native}, moved {lines[1]} {remote}")


ALL = {"waits": waits_are_made_again}
