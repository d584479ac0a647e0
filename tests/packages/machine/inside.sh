#!/bin/bash
# What an administrator and users do with the packages in a machine whose process 1 is systemd; ../machine/run starts it there.
# Each line that it prints is a check. Nothing here depends on how fast the machine is: waits end with what is waited for.
set -u
here=$(cd "$(dirname "$0")" && pwd)
readonly here sessions=20 users=(alice bob carol dave) work=/tmp/check
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

check() { # STATUS NAME [FILE]: the file says why
    if [ "$1" = 0 ]; then
        echo "ok   $2"
    else
        echo "FAIL $2"
        [ -z "${3:-}" ] || tail -n 25 "$3" | sed 's/^/     /'
    fi
}
try() { # NAME COMMAND...
    "${@:2}" >"$work/why" 2>&1
    check $? "$1" "$work/why"
}
until_true() { # COMMAND...
    local left=3000
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        sleep 0.1
    done
}
told() { # PATTERN: the last command's output has it
    grep -qE -- "$1" "$work/why"
    check $? "${2:-and says: $1}" "$work/why"
}
property() { systemctl show --property "$2" --value "$1"; }
as() { # USER COMMAND...
    setpriv --reuid "$1" --regid "$1" --init-groups env -i HOME="/home/$1" PATH="$PATH" "${@:2}"
}
versions() { # FOLDER: packages of everybody and nvidia-smi
    apt-get install -y --allow-downgrades "$1"/aviary_*.deb "$1"/aviary-apis_*.deb "$1"/aviary-guest_*.deb "$1"/aviary-smi_*.deb
}

# --- what is on the machine, to be the same at the end ---

# Also in directories that are in memory, but not what the kernel and other programs write there by themselves.
inventory() {
    {
        find / -xdev \( -path "$here" -o -path "$work" -o -path /proc -o -path /sys \) -prune -o -print
        find /run /dev/shm -xdev -print
    } | grep -vE '^/(var/(lib/(apt|dpkg|systemd|dbus|ucf)|log|cache|backups)|run/(systemd|udev|dbus|log|user)|home|root|tmp|var/tmp|etc/(passwd|group|shadow|gshadow|subuid|subgid)-?|usr/lib/modules)(/|$)' | sort
    find /tmp /var/tmp /dev/shm /var/log /var/lib/systemd /run/systemd /sys/fs/cgroup -name '*aviary*' 2>/dev/null | grep -v "^$work" | sort
}
things() { # FOLDER
    mkdir -p "$1"
    inventory >"$1/files"
    cut -d: -f1 /etc/passwd /etc/group | sort >"$1/users"
    systemctl list-unit-files --no-legend --plain | awk '{ print $1, $2 }' | sort >"$1/unit-files"
    systemctl list-units --all --no-legend --plain 'aviary*' | awk '{ print $1, $3 }' | sort >"$1/units"
    awk '{ print $5 }' /proc/self/mountinfo | sort >"$1/mounts"
    ss -Hlnxtu 2>/dev/null | awk '{ print $1, $5 }' | grep -v '^u_[a-z]* \*' | sort >"$1/sockets"
    ps -eo comm= | grep -c aviary >"$1/processes"
}

# --- the parts ---

installed() {
    try "apt installs the packages" versions "$here/now"
    told "no node was started" "and says that no node was started"
    try "dpkg -V finds nothing" dpkg -V aviary aviary-apis aviary-guest aviary-smi
    [ "$(systemctl is-enabled aviary.service)" = disabled ]; check $? "the unit is not enabled"
    as alice clinfo >"$work/native" 2>&1
    touch "$work/stop"
    try "the checked program is right natively" as alice "$here/steady" 1 "$work/stop"
    as alice aviary run -- clinfo >"$work/why" 2>&1 && cmp "$work/native" "$work/why"
    check $? "without a node, clinfo shows a user what it shows natively" "$work/why"
}
served() {
    sed -i 's/^#mode = "660"/mode = "666"/; s/^#attach_rate = [0-9]*/attach_rate = 0/' /etc/aviary/node.toml
    try "systemctl enable --now aviary" systemctl enable --now aviary
    [ "$(property aviary ActiveState)" = active ]; check $? "the unit is active"
    [ "$(property aviary Type)" = notify ]; check $? "its type is notify"
    [ "$(property aviary WatchdogUSec)" = 1min ] && [ "$(property aviary WatchdogTimestampMonotonic)" != 0 ]; check $? "it is watched"
    as alice aviary run --server unix:/run/aviary/node.sock -- clinfo >"$work/why" 2>&1 && cmp "$work/native" "$work/why"
    check $? "clinfo of a user of the node shows what it shows natively" "$work/why"
    try "systemctl reload" systemctl reload aviary
}
begin_load() { # NAME
    local i user
    rm -f "$work/stop"
    mkdir -p "$work/$1"
    for ((i = 0; i < sessions; i++)); do
        user=${users[i % ${#users[@]}]}
        as "$user" aviary run --server unix:/run/aviary/node.sock -- "$here/steady" "$i" "$work/stop" >"$work/$1/$i" 2>&1 &
        # Of one tenant the first one compiles; all at once would take the machine's memory for that.
        until_true grep -q . "$work/$1/$i"
    done
    until_true all_say "$1" begun
    check $? "$sessions programs compute at the node" <(tail -n 3 "$work/$1"/* 2>/dev/null)
}
all_say() { [ "$(grep -lx "$2" "$work/$1"/* | wc -l)" = $sessions ]; }
end_load() { # NAME TEXT
    touch "$work/stop"
    wait
    tail -n 3 "$work/$1"/* >"$work/why"
    echo "     $(grep -lx right "$work/$1"/* | wc -l) of $sessions"
    all_say "$1" right; check $? "$2" "$work/why"
}
# Not those that `aviary run` has started beside users' programs: they end with these.
old_ones() {
    local place
    for place in /proc/[0-9]*; do
        [[ $(readlink "$place/exe") == *'aviary (deleted)' ]] && ! grep -qz '^run-node$' "$place/cmdline" && ls -l "$place/exe"
    done 2>/dev/null
}
none_is_old() { [ -z "$(old_ones)" ]; }
program() { readlink "/proc/$(property aviary MainPID)/exe"; }

upgraded() {
    local before
    before=$(property aviary MainPID)
    begin_load upgrade
    try "apt installs a newer version meanwhile" versions "$here/newer"
    sed -n '/node.s program was replaced\|sessions moved\|stays in/s/^/     /p' "$work/why"
    told "program was replaced: $sessions sessions continue"
    told "^$sessions sessions moved" "all sessions are in API servers of the new program"
    [ "$(property aviary MainPID)" = "$before" ] && [ "$(program)" = /usr/bin/aviary ] && [ "$(property aviary ActiveState)" = active ]
    check $? "the unit's process has the new program, and is active" "$work/why"
    until_true none_is_old; check $? "and so have its API servers" <(old_ones)
    end_load upgrade "after the upgrade, all end with the right result"
    as bob aviary run --server unix:/run/aviary/node.sock -- clinfo >"$work/why" 2>&1 && cmp "$work/native" "$work/why"
    check $? "programs that come later are served" "$work/why"
}
refused() {
    local before
    before=$(property aviary MainPID)
    begin_load refused
    cp /etc/aviary/node.toml "$work/node.toml"
    echo 'no_such_key = 1' >>/etc/aviary/node.toml
    try "apt succeeds where the node refuses the new program" versions "$here/later"
    told "no_such_key" "and says why"
    told "goes on with the program of before"
    [ "$(property aviary MainPID)" = "$before" ] && [ "$(program)" = "/usr/bin/aviary (deleted)" ] && [ "$(property aviary ActiveState)" = active ]
    check $? "the unit goes on with the old one" "$work/why"
    grep -q '^no_such_key' /etc/aviary/node.toml && grep -q '^mode = "666"' /etc/aviary/node.toml; check $? "the edited configuration is kept"
    end_load refused "after a refusal, all end with the right result"
    cp "$work/node.toml" /etc/aviary/node.toml
    try "systemctl restart starts the new one" systemctl restart aviary
    [ "$(program)" = /usr/bin/aviary ]; check $? "and it is the new one"
}
others() {
    cp /etc/aviary/node.toml /etc/aviary/second.toml
    echo 'api_server_users = "300000-300999"' >"$work/second" && cat /etc/aviary/second.toml >>"$work/second" && cp "$work/second" /etc/aviary/second.toml
    try "aviary@second starts" systemctl enable --now aviary@second
    as carol aviary run --server unix:/run/aviary-second/node.sock -- clinfo >"$work/why" 2>&1 && cmp "$work/native" "$work/why"
    check $? "and serves" "$work/why"
    try "aviary-metrics.socket starts" systemctl enable --now aviary-metrics.socket
    try "and its counters are fetched" curl -sSf http://127.0.0.1:9400/metrics
    told '^# TYPE aviary_' "they are the node's"
    try "aviary grant" aviary grant pod --socket /run/aviary/grants/pod --server unix:/run/aviary/node.sock
}
watched() {
    local before
    before=$(property aviary MainPID)
    kill -STOP "$before"
    # WatchdogSec is a minute.
    until_true eval '[ "$(property aviary MainPID)" != "$before" ] && systemctl is-active aviary'
    check $? "a node that hangs is ended and started again" <(journalctl -u aviary -n 20)
    [ "$(property aviary NRestarts)" -gt 0 ]; check $? "by the watchdog"
}
removed() {
    try "apt removes the packages" apt-get remove -y aviary aviary-apis aviary-guest aviary-smi
    [ -e /etc/aviary/node.toml ] && [ ! -e /usr/bin/aviary ]; check $? "the configuration stays, the program does not"
    ! pgrep -x aviary >/dev/null; check $? "no node goes on" <(ps -ef 2>/dev/null | grep aviary 2>/dev/null)
    rm /etc/aviary/second.toml
    try "apt purges them" apt-get purge -y aviary
    things "$work/after"
    local kind
    for kind in files users unit-files units mounts sockets processes; do
        diff "$work/before/$kind" "$work/after/$kind" >"$work/why"; check $? "purge leaves no $kind" "$work/why"
    done
}

main() {
    local user
    rm -rf "$work" && mkdir -p "$work" && chmod 755 "$work"
    systemctl is-system-running --wait >/dev/null
    echo "     $(uname -r), $(systemctl --version | head -n 1), process 1: $(cat /proc/1/comm)"
    for user in "${users[@]}"; do useradd --create-home "$user"; done
    # Some sandboxes give it another mode.
    chmod 666 /dev/null
    # Systemd's units of users, and caches.
    as alice clinfo >/dev/null 2>&1
    things "$work/before"
    installed
    served
    upgraded
    refused
    others
    watched
    removed
    echo "end"
}
main
