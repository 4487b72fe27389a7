#!/bin/sh
# A run that goes on where it was: run.sh NAME, with its app and keys in NAME.run beside this file:
#   APP=@corsage/corsage==0.1.0
#   KEYS="strategy='fedavg' num-nodes=2"
# Leaves with the run's own code; 75: when the devices are there again, once more resumes it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/settings.sh"
. "$here/$1.run"
runs="$state/runs/$1"
last() { ls -d "$runs"/*/ 2>/dev/null | tail -n 1; }
folder=$(last)
if [ -n "$folder" ]; then
    code=0
    corsage wait "$folder" || code=$?
    case $code in 0 | 2) exit "$code" ;; esac
    KEYS="resume='${folder%/}'"
else
    KEYS="$KEYS run-dir='$runs'"
fi
id=$(flwr run "$APP" here --format json --run-config "$KEYS") || exit 75 # no SuperLink is there yet
code=0
echo "$id" | corsage wait - here || code=$?
folder=$(last)
[ -n "$folder" ] || exit "$code" # it ended before it had a folder
exec corsage wait "$folder"
