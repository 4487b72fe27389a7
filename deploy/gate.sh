#!/bin/sh
# The only door that devices see: Flower's Fleet API, passed on to the SuperLink, and nothing else.
# Who is there stands in status.json.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
state=${STATE_DIRECTORY:-$here/state/gate}
umask 077
mkdir -p "$state"
. "$here/gate.env" # PORT, as `corsage deploy` was told
exec corsage gate "$here" --host "${GATE_HOST:-0.0.0.0}" --port "${GATE_PORT:-$PORT}" \
    --superlink "127.0.0.1:${SUPERLINK_PORT:-8000}" --shelf-port "${SHELF_PORT:-8001}" \
    --status "$state/status.json"
