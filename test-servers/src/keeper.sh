# Keeps the folder $1 and the server that runs in it for the process at the other end of standard input. Each line that
# arrives is a call of a function below and gets one line as its answer. When the input ends, the server is stopped as
# $2 says and the folder is removed: the end of the other process, even by kill -9, closes the pipe.
# The server is a child of this shell, so its process id can't have become another process's.
folder=$1
ending=$2
server=

# Nothing must end this shell before it has cleaned up: no answer that nobody reads any more (PIPE), and no HUP, which
# systems send to a group of processes that has lost its parent while one of them, a paused server, stands still.
trap '' PIPE HUP INT TERM

# start LOG COMMAND...: starts the server; answers with its process id.
start() {
    log=$1
    shift
    "$@" </dev/null >>"$log" 2>&1 &
    server=$!
    echo "$server"
}

# run LOG COMMAND...: runs a command to its end; answers with its exit status.
run() {
    log=$1
    shift
    "$@" </dev/null >>"$log" 2>&1
    echo "$?"
}

# stop SIGNAL TENTHS [SIGNAL TENTHS]...: sends the signals in turn until the server is gone, waiting the given tenths of
# a second after each; answers "gone" or "alive".
stop() {
    while [ -n "$server" ] && [ $# -ge 2 ]; do
        kill -s "$1" "$server" 2>/dev/null
        # A process that is paused sees no signal but KILL.
        [ "$1" = KILL ] || kill -s CONT "$server" 2>/dev/null
        tenths=$2
        while kill -0 "$server" 2>/dev/null && [ "$tenths" -gt 0 ]; do
            sleep 0.1
            tenths=$((tenths - 1))
        done
        kill -0 "$server" 2>/dev/null || server=
        shift 2
    done
    if [ -z "$server" ]; then echo gone; else echo alive; fi
}

while IFS= read -r line; do
    eval "$line"
done

stop $ending >/dev/null
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf "$folder" 2>/dev/null && break
    sleep 0.2
done
