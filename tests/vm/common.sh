# Code that the scripts of tests/vm/*/run share. Sourced; $here is the script's folder.
root=$(cd "$here/../../.." && pwd)
aviary=${AVIARY:-$root/target/release/aviary}
vm=$root/target/cache/vm
work=$(mktemp -d)
. "$root/tests/harness/check.sh"
trap 'rm -rf "$work"' EXIT
export AVIARY_QEMU=$vm/qemu-system-x86_64

# Ends the script where there is nothing to test with.
require_vm() {
    if ! "$root/tests/vm/fetch" >"$work/why" 2>&1; then
        echo "skip everything: no QEMU and kernel for a virtual machine: $(tail -n 1 "$work/why")"
        finish
    fi
    [ -x "$aviary" ] || { verdict 1 "$aviary is there (./x setup builds it)"; finish; }
}
