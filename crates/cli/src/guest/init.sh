#!/bin/busybox sh
# The first process of a guest that `aviary guest image` made.
#
# It loads the modules, runs the command that came with the image and turns the machine off. The command's input and
# output go over ports of a virtio console: what the kernel prints on the serial console cannot get between them.

/bin/busybox mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1
/bin/busybox --install -s /usr/bin
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root
mkdir -p /proc /sys /tmp /run /root /dev/pts /dev/shm /var/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devpts pts /dev/pts
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=1777 shm /dev/shm
ln -s /proc/self/fd /dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${stream%:*}" "/dev/${stream#*:}"; done
ip link set lo up

say() { echo "aviary-vm: $*"; }

# On the kernel's command line, aviary.NAME=VALUE is the driver's parameter NAME, as modprobe has it.
driver_options() {
    local word
    for word in $(cat /proc/cmdline); do
        case $word in aviary.*) echo "${word#aviary.}" ;; esac
    done
}
while read -r module; do
    options=
    [ "$module" = aviary ] && options=$(driver_options)
    # One word, one parameter.
    insmod "/usr/lib/aviary/modules/$module.ko" $options || say "module $module does not load"
done </etc/aviary/modules
# Everything in this VM is one command's.
[ -e /dev/aviary ] && chmod 666 /dev/aviary
export LD_LIBRARY_PATH=/usr/lib/aviary/lib:/usr/lib/aviary/programs
[ -f /etc/aviary/environment ] && . /etc/aviary/environment

if ! [ -f /etc/aviary/command ]; then
    say "no command: this is a shell, and its end turns the machine off"
    cd /root
    setsid cttyhack sh
    poweroff -f
fi

port() { # NAME: the device of this port
    local folder
    for folder in /sys/class/virtio-ports/*; do
        if [ "$(cat "$folder/name" 2>/dev/null)" = "aviary.$1" ]; then
            echo "/dev/${folder##*/}"
            return 0
        fi
    done
    return 1
}
tries=0
# The host makes them in this order.
until port status >/dev/null; do
    tries=$((tries + 1))
    [ $tries -gt 100 ] && break
    sleep 0.1
done

if port status >/dev/null; then
    # Waits until the host is at the other end of this port, and so of those before it.
    exec 7>"$(port status)"
    echo ready >&7
    # A port can be opened once; pipes can be opened again, as /dev/stderr.
    mkfifo /run/out /run/err
    cat /run/out >"$(port out)" 7>&- &
    out=$!
    cat /run/err >"$(port err)" 7>&- &
    err=$!
    (cd /root && exec setsid sh /etc/aviary/command <"$(port in)" >/run/out 2>/run/err 7>&-)
    status=$?
    # Processes that the command left in the background end with it, so that the pipes end. A killed process may have
    # started another process a moment before: again, until nobody is left. Threads of the kernel have no program.
    tries=0 left=yes
    while [ -n "$left" ] && [ $tries -lt 100 ]; do
        tries=$((tries + 1)) left=
        for process in /proc/[0-9]*; do
            case ${process#/proc/} in 1 | "$out" | "$err") continue ;; esac
            [ -e "$process/exe" ] && kill -9 "${process#/proc/}" 2>/dev/null && left=yes
        done
        [ -z "$left" ] || sleep 0.02
    done
    wait "$out" "$err"
    echo "exit $status" >&7
else
    say "no console ports: the command runs on this console"
    (cd /root && exec setsid sh /etc/aviary/command)
    status=$?
fi
say "exit $status"
poweroff -f
