# Sourced by the shell scripts among the tests: a line for each check, and as the last line the counts that the runner
# reads. A script sets `only` to the prefixes of the checks that it was asked for.
passed=0 failed=0 only=()
# Seconds after which a wait for another process is a hang. It bounds tests and claims nothing about speed.
readonly HANG_SECONDS=60

selected() { # NAME: is it one of the checks that were asked for?
    [ ${#only[@]} -eq 0 ] && return 0
    local prefix
    for prefix in "${only[@]}"; do [[ $1 == "$prefix"* ]] && return 0; done
    return 1
}
verdict() { # 0|1 NAME [FILE with details]
    if [ "$1" = 0 ]; then
        passed=$((passed + 1)); echo "ok   $2"
    else
        failed=$((failed + 1)); echo "FAIL $2"
        [ -n "${3:-}" ] && tail -n 40 "$3" | sed 's/^/       /'
    fi
}
until_gone() { # PID: waits for its end; fails if it hangs
    local end=$((SECONDS + HANG_SECONDS))
    while kill -0 "$1" 2>/dev/null && [ "$(ps -o stat= -p "$1" | cut -c1)" != Z ]; do
        [ $SECONDS -ge $end ] && return 1
        sleep 0.02
    done
}
until_true() { # COMMAND...: repeats it until it succeeds; fails if it never does
    local end=$((SECONDS + HANG_SECONDS))
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -ge $end ] && return 1
        sleep 0.05
    done
}
finish() { # prints the counts and exits
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}
