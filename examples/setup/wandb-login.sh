#!/bin/bash
# Logs in to wandb by file: the key is neither an argument nor in a log. The config needs: env: {KEY: '${env:WANDB_API_KEY}'}
set -eu
umask 077
host=${1-api.wandb.ai}
new=$(mktemp "$HOME/.netrc.XXXXXX")
trap 'rm -f "$new"' EXIT
if [ -e "$HOME/.netrc" ]; then # without what it says about this host, in one line or several
    awk -v host="$host" '$1 == "machine" { skip = $2 == host } !skip' "$HOME/.netrc" > "$new"
fi
printf 'machine %s\n  login user\n  password %s\n' "$host" "$KEY" >> "$new"
mv "$new" "$HOME/.netrc"
