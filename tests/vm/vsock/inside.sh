# Runs in the VM: a node that listens on vsock, and programs that reach it by the loopback CID. Prints lines for the test.
#   inside.sh PROGRAM...
export HOME=/tmp XDG_RUNTIME_DIR=/tmp AVIARY_API_PATH=/opt/apis LD_LIBRARY_PATH=/opt/vendor
[ -e /dev/vsock ] || { echo "no /dev/vsock"; exit 9; }
aviary tls init /tmp/tls --tenant alice >/dev/null || exit 9
aviary tls init /tmp/other --tenant eve >/dev/null || exit 9

start() { # OPTIONS: sets node
    aviary serve --listen vsock:any:7000 "$@" >/tmp/node.log 2>&1 &
    node=$!
    for i in $(seq 600); do
        grep -q "listening on vsock:any:7000" /tmp/node.log && return
        sleep 0.1
    done
    cat /tmp/node.log
    exit 9
}
stop() {
    kill $node
    wait $node
}
compare() { # NAME OPTIONS -- PROGRAM ARGUMENTS
    name=$1
    shift
    aviary run --api testapi --server vsock:1:7000 "$@" >/tmp/remote 2>/tmp/errors
    status=$?
    while [ "$1" != -- ]; do shift; done
    shift
    "$@" >/tmp/native 2>/dev/null
    if [ $status = 0 ] && cmp -s /tmp/native /tmp/remote; then
        echo "ok $name ($(grep -c ^ok /tmp/remote) lines)"
    else
        echo "FAIL $name: status $status: $(head -n 3 /tmp/errors)"
    fi
}
refused() { # NAME TEXT OPTIONS
    name=$1 text=$2
    shift 2
    if aviary run --api testapi --server vsock:1:7000 "$@" -- /opt/programs/hold 1 >/tmp/remote 2>/tmp/errors; then
        echo "FAIL $name: it was served"
    elif grep -q "$text" /tmp/errors; then
        echo "ok $name"
    else
        echo "FAIL $name: $(head -n 3 /tmp/errors)"
    fi
}

tls="--tls-dir /tmp/tls/tenant-alice"
start --tls-dir /tmp/tls/node
for program in "$@"; do compare "tls: $program" $tls -- /opt/programs/$program; done
compare "tls: threads" $tls -- /opt/programs/threads 200
refused "tls: another CA" "ca.pem" --tls-dir /tmp/other/tenant-eve
refused "tls: a client without TLS" "if it uses TLS" --plain-loopback

# The link's death is known at both ends.
aviary run --api testapi --server vsock:1:7000 $tls -- /opt/programs/hold 60 >/tmp/hold 2>/tmp/errors &
holder=$!
for i in $(seq 600); do grep -q '^holding' /tmp/hold && break; sleep 0.1; done
read -r _ guest server </tmp/hold
for file in /proc/[0-9]*/cmdline; do
    # The gateway's command line begins with "aviary gateway".
    if tr '\0' ' ' <$file 2>/dev/null | grep -q '^aviary gateway'; then
        pid=${file#/proc/}
        kill -9 ${pid%/cmdline}
    fi
done
wait $holder
status=$?
[ $status = 3 ] && grep -q '^lost -9 -9' /tmp/hold && echo "ok a killed gateway: the guest knows" || echo "FAIL a killed gateway: status $status: $(cat /tmp/hold)"
for i in $(seq 600); do [ -d /proc/$server ] || break; sleep 0.1; done
[ -d /proc/$server ] && echo "FAIL a killed gateway: the API server goes on" || echo "ok a killed gateway: the API server ends"
stop

# Everything in this machine is root.
aviary serve --listen vsock:any:7000 --plain-loopback >/tmp/node.log 2>&1 && echo "FAIL plain: a node of root serves"
grep -q "runs as root" /tmp/node.log && echo "ok plain: a node of root refuses" || echo "FAIL plain: $(head -n 3 /tmp/node.log)"
refused "nobody listens" "connection refused\|cannot connect" $tls
echo end
