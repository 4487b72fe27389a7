#!/bin/sh
# The corsage command with the settings of this server: corsage.sh register FOLDER, corsage.sh wait ...
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/settings.sh"
exec corsage "$@"
