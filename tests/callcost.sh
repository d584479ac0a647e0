#!/bin/sh
# Instructions and system calls of a call, against the baseline.
exec python3 "$(dirname "$0")/../bench/callcost.py" check
