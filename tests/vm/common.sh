# What the scripts of tests/vm/*/run share. Sourced; $here is the script's folder.
root=$(cd "$here/../../.." && pwd)
aviary=${AVIARY:-$root/target/release/aviary}
vm=$root/target/cache/vm
work=$(mktemp -d)
passed=0 failed=0
trap 'rm -rf "$work"' EXIT
export AVIARY_QEMU=$vm/qemu-system-x86_64

verdict() { # 0|1 NAME [FILE with details]
    if [ "$1" = 0 ]; then
        passed=$((passed + 1)); echo "ok   $2"
    else
        failed=$((failed + 1)); echo "FAIL $2"
        [ -n "${3:-}" ] && tail -n 40 "$3" | sed 's/^/       /'
    fi
}
finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}
# Ends the script where there is nothing to test with.
require_vm() {
    if ! "$root/tests/vm/fetch" >"$work/why" 2>&1; then
        echo "skip everything: no QEMU and kernel for a virtual machine: $(tail -n 1 "$work/why")"
        finish
    fi
    [ -x "$aviary" ] || { verdict 1 "$aviary is there (./x setup builds it)"; finish; }
}
