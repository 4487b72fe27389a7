# Sourced by the scripts of the server, which say where `here` is.
state=${STATE_DIRECTORY:-$here/state}
export FLWR_HOME="$state/flwr"
export FLWR_SUPERGRID_API_URL="http://127.0.0.1:${SHELF_PORT:-8001}" # apps come from the gate's shelf
export FLWR_DISABLE_UPDATE_CHECK=1 FLWR_TELEMETRY_ENABLED=0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
