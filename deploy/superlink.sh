#!/bin/sh
# The server. It listens to this machine only: devices come in by the gate, runs are started here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/settings.sh"
umask 077
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<CONFIG
[superlink.here]
address = "127.0.0.1:${SUPERLINK_PORT:-8000}"
root-certificates = "$here/ca.crt"
CONFIG
cd "$state"
exec flower-superlink --host 127.0.0.1 --port "${SUPERLINK_PORT:-8000}" \
    --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" \
    --ssl-keyfile "$here/server.key" --enable-supernode-auth \
    --disable-runtime-dependency-installation --database "$state/superlink.db"
