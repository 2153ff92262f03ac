#!/bin/sh
# What a login on a worker without its own root runs: the user's shell, with the worker's home as its home.
cd "$HOME" || exit 1
shell=${SHELL:-/bin/sh}
case "${SSH_ORIGINAL_COMMAND-}" in
'') exec "$shell" -l ;;
*sftp-server*) exec $SSH_ORIGINAL_COMMAND -d "$HOME" ;;
*) exec "$shell" -c "$SSH_ORIGINAL_COMMAND" ;;
esac
