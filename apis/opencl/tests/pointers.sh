# For tests/pointers: the runtimes of the machine.
headers=()
vendor() { mkdir -p "$1" && echo "$1"; }
