#!/bin/sh
# The flwr command with the settings of this server: flwr.sh run @corsage/corsage==VERSION here ...
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/settings.sh"
exec flwr "$@"
