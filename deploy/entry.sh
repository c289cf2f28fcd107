#!/bin/sh
# What a container or a unit runs: entry.sh ROLE. The party's folder is in OFFBEAT_HOME.
#
#   daemon         the party's daemon; it is given OFFBEAT_DRAIN_S seconds to end its runs (60)
#   score RUN      the scoring service of a finished run, at OFFBEAT_HOST:OFFBEAT_PORT (127.0.0.1:8443)
#   check          what is wrong before a job finds out
set -eu

home=${OFFBEAT_HOME:-.}
role=${1:-daemon}

if [ "$role" != help ] && [ ! -f "$home/party.toml" ]; then
    echo "entry.sh: expected a party's folder in OFFBEAT_HOME, found no $home/party.toml; offbeat party init makes one." >&2
    exit 2
fi

case "$role" in
    daemon)
        exec offbeat party serve --home "$home" --log-json --drain "${OFFBEAT_DRAIN_S:-60}"
        ;;
    score)
        if [ -z "${2:-}" ]; then
            echo "entry.sh: score needs the name of a finished run." >&2
            exit 2
        fi
        exec offbeat serve "$2" --home "$home" --host "${OFFBEAT_HOST:-127.0.0.1}" --port "${OFFBEAT_PORT:-8443}" --log-json
        ;;
    check)
        exec offbeat party check --home "$home"
        ;;
    *)
        echo "entry.sh: there are daemon, score RUN and check; got '$role'." >&2
        exit 2
        ;;
esac
