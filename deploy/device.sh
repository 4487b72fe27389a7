#!/bin/sh
# A device. It runs no app but those that are signed by a key in trusted.yaml. It ends when it is cut
# off, to be started again; how it is connected stands in status.json.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
state=${STATE_DIRECTORY:-$here/state}
. "$here/device.env"
export FLWR_HOME="$state/flwr" FLWR_DISABLE_UPDATE_CHECK=1 FLWR_TELEMETRY_ENABLED=0
# Seconds between two looks of Flower's executor for a message that has come (its own default is 1).
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.5}"
umask 077
mkdir -p "$state/users"
cd "$state"
exec corsage supernode --superlink "$SERVER" --host 127.0.0.1 --port "$PORT" \
    --root-certificates "$here/ca.crt" --auth-supernode-private-key "$here/device.key" \
    --trusted-entities "$here/trusted.yaml" --node-config "$NODE_CONFIG state-dir='$state/users'"
