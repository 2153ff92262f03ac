"""The scripts of the steps (for `sh -e`), and those that Bash runs beside the container and in it."""

from __future__ import annotations

from collections.abc import Mapping

from tpux import Sh, sh
from tpux_worker_tools import apt

SENT = "TPUX_DOCKER_VARIABLE_"
"""The variables that hold NAME=VALUE for the container begin with this, then their number."""


def sent(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold these for the container."""
    return {f"{SENT}{index}": f"{name}={value}" for index, (name, value) in enumerate(variables.items())}


# Sets docker to the command that may be used here, or problem to why there is none. Whoever was added to the group
# docker after the connection was opened is not in it, so sudo is tried too.
_FIND_DOCKER = """
find_docker() {
    docker=docker
    if problem=$(timeout 30 docker version 2>&1 >/dev/null); then return; fi
    docker='sudo -n docker'
    [ "$(id -u)" != 0 ] && timeout 30 sudo -n docker version >/dev/null 2>&1
}

explain() {
    echo "${problem:-no answer within 30 s}"
    if ! command -v docker >/dev/null; then
        echo 'docker is not installed, and installing it needs root or sudo without a password'
    elif [ "$problem" != "${problem#*ermission denied}" ]; then
        echo "$(id -un) may not use docker, and sudo needs a password; as root: usermod -aG docker $(id -un)"
    else
        echo 'the docker daemon does not answer; as root: systemctl status docker'
    fi
}
"""

FINAL = 78
"""The exit code of a step that another try does not help (`EX_CONFIG` of sysexits)."""
NOT_STARTED = "tpux: the image's ENTRYPOINT never started the command"
"""How the line begins that says so."""
REPLACE_ENTRY_POINT = 'replace it, docker.flags: ["--entrypoint="], or let it end with exec "$@"'

CHECK = f"""# check docker and the image
{_FIND_DOCKER}
if ! find_docker; then
    explain
    exit 1
fi
id=$($docker image inspect --format '{{{{.Id}}}}' {{image}})
if [ "$(cat {{tried}} 2>/dev/null)" != "$id" ]; then
    echo 'no command was started in this image yet'
    exit 1
fi
"""

_INSTALL = f"""# find, start or install docker
{_FIND_DOCKER}
if find_docker; then exit; fi
sudo=
if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        explain
        exit 1
    fi
    sudo='sudo -n'
fi
if ! $sudo sh -c 'command -v docker' >/dev/null; then
@apt@
    apt_update
    apt install docker.io
fi
if [ -d /run/systemd/system ]; then $sudo systemctl start docker; else $sudo service docker start; fi || :
for pause in 1 2 4 8 15 ''; do
    if find_docker; then exit; fi
    [ -z "$pause" ] || sleep "$pause"
done
explain
exit 1
"""


def install() -> Sh:
    """Return the step that finds, starts or installs docker."""
    return sh(_INSTALL.replace("@apt@", apt.functions()))


# A token of the VM's service account is used for Google's registries, in a directory that is removed: it is nobody
# else's, and expires. The directory is the user's, also if root puts the token into it: so the user can remove it.
# Where the answer cannot change, the pull is not repeated.
# Source: cloud.google.com/artifact-registry/docs/docker/authentication, "Access token".
PULL = f"""# pull the image
{_FIND_DOCKER}
if ! find_docker; then
    explain
    exit 1
fi
image={{image}}
if $docker image inspect "$image" >/dev/null 2>&1; then
    echo "it is there"
    exit
fi
new=$(mktemp -d)
mkdir "$new/config"
trap 'rm -rf "$new"' EXIT
trap 'exit 143' HUP INT TERM
login() {{
    url=http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token
    token=$(curl -sSf -m 20 -H 'Metadata-Flavor: Google' "$url" | sed -n 's/.*"access_token" *: *"\\([^"]*\\)".*/\\1/p')
    [ -n "$token" ] || return
    printf %s "$token" | $docker --config "$new/config" login -u oauth2accesstoken --password-stdin "https://${{image%%/*}}"
}}
case $image in
    *-docker.pkg.dev/* | gcr.io/* | *.gcr.io/*)
        if login; then
            docker="$docker --config $new/config"
        else
            echo 'there is no service account to log in with; pulling without a login'
        fi
        ;;
esac
for pause in 5 15 45 ''; do
    {{ $docker pull "$image" 2>&1 || echo failed >"$new/failed"; }} | tee "$new/output"
    if ! [ -e "$new/failed" ]; then exit; fi
    rm "$new/failed"
    case $(cat "$new/output") in
        *'denied'* | *'nauthorized'* | *'no basic auth'* | *'uthentication required'* | *'incorrect username'*)
            host=${{image%%/*}}
            case $host in "$image") host= ;; *.* | *:* | localhost) ;; *) host= ;; esac
            echo "the image $image cannot be pulled: check its name and tag, and who may read it;" \
                "if it needs a login, run on each worker, as in a script of the module script:" \
                "docker login${{host:+ $host}}"
            exit {FINAL}
            ;;
        *'manifest unknown'* | *'not found'* | *'not exist'* | *'invalid reference'* | *'no matching manifest'*)
            echo "the image $image cannot be pulled: check its name and tag"
            exit {FINAL}
            ;;
        *'no space left'* | *'x509:'* | *'HTTP response to HTTPS'* | *'not supported'* | *'unsupported'*)
            echo "the image $image cannot be pulled: $(grep -v '^[[:space:]]*$' "$new/output" | tail -n 1)"
            exit {FINAL}
            ;;
    esac
    [ -n "$pause" ] || break
    echo "trying again in $pause s"
    sleep "$pause"
done
echo "the image $image could not be pulled in four tries: see above"
exit 1
"""

# An exit code of the command is none of the image's entry point: only the mark that INIT empties shows that the command
# was started. What an image is tried with is what the command gets: an entry point, a user who must read the script,
# bash, options. Any other image of the name, or other options, are tried again.
TRY = f"""# try to start a command in the image
{_FIND_DOCKER}
if ! find_docker; then
    explain
    exit 1
fi
image={{image}} name={{name}} script={{script}} tried={{tried}}
id=$($docker image inspect --format '{{{{.Id}}}}' "$image")
if [ "$(cat "$tried" 2>/dev/null)" = "$id" ]; then
    echo 'a command was started in it before'
    exit
fi
directory=${{script%/*}}
mkdir -p "${{tried%/*}}" "$directory"
said=$(mktemp)
trap 'rm -rf "$said" "$directory"' EXIT
trap 'exit 143' HUP INT TERM
(umask 077 && echo 'exit 0' >"$script")
export TPUX_RUN_HOME="${{TPUX_RUN_HOME:-$PWD}}"
code=0
timeout -k 10 {{limit}} bash -c {{run}} tpux-docker {{arguments}} >"$said" 2>&1 || code=$?
cat "$said"
if [ "$code" = 0 ]; then
    echo "$id" >"$tried"
    exit
fi
$docker rm -f "$name" >/dev/null 2>&1 || :
image_is=$($docker image inspect --format '{{{{.Os}}}}/{{{{.Architecture}}}}' "$image")
worker_is=$($docker version --format '{{{{.Server.Os}}}}/{{{{.Server.Arch}}}}')
text=$(cat "$said")
why='no command can be started in it: see above' final={FINAL}
case $text in
    *'exec format error'*)
        why="it is for another kind of machine than $worker_is: build it with --platform=$worker_is"
        ;;
    *'"bash": executable file not found'*) why='it has no bash in its PATH, which must start the command: add it' ;;
    *"{NOT_STARTED}"*) why='its ENTRYPOINT never started a command: {REPLACE_ENTRY_POINT}' ;;
    *"$script: Permission denied"*)
        user=$($docker image inspect --format '{{{{.Config.User}}}}' "$image")
        why="its user ${{user:-root}} cannot read the command's file: use another, docker.flags: [\\"--user=root\\"]"
        ;;
    *)
        final=$code
        case $code in
            124 | 137)
                why="its ENTRYPOINT has started no command within {{limit}} s: "'{REPLACE_ENTRY_POINT}' final={FINAL}
                ;;
        esac
        ;;
esac
[ "$image_is" = "$worker_is" ] || [ "$final" = "$code" ] || why="it is for $image_is; $why"
# Among the lines of a failed step this one is the reason, not docker's own before it, unless it knows no better.
[ "$final" = "$code" ] && mark='' || mark='error: '
echo "${{mark}}the image $image: $why"
exit "$final"
"""

STOP = f"""# stop the container
{_FIND_DOCKER}
if ! find_docker; then
    explain
    exit 1
fi
[ -n "$($docker ps -aq --filter name=^/{{name}}$)" ] || exit 0
$docker stop -t {{grace}} {{name}} >/dev/null 2>&1 || :
$docker rm -f {{name}} >/dev/null 2>&1 || :
"""

# Run by Bash beside the container: $1 is its name, $2 the label of all containers of this worker, $3 the number of its
# variables, $4 the mark that INIT empties once it runs (a file that is not empty, since a disk may be full), $5 the
# number of the directories that follow, which docker would not create; the rest are the arguments of docker. The
# container's stdin is a pipe that ends only with the client, so the container notices the client's end, however it
# comes. It begins with the variables: in a file they could not contain newlines, and docker would keep those of an
# option on its disk, and show them.
RUN = (
    _FIND_DOCKER
    + """
name=$1 label=$2 count=$3 mark=$4 directories=$5 signalled=
shift 5
PATH=$PATH:/usr/local/bin:/usr/bin:/bin HOME=$TPUX_RUN_HOME
for directory in "${@:1:directories}"; do
    mkdir -p -- "$directory" || exit 126
done
shift "$directories"
if ! find_docker; then
    explain >&2
    echo 'tpux: docker cannot be used; the command was not run' >&2
    exit 126
fi
for id in $($docker ps -aq --filter "label=$label"); do  # of an earlier attempt that was killed
    $docker rm -f "$id" >/dev/null
done

rm -f "$mark"
echo 'not started' >"$mark" && chmod 0666 "$mark" || exit 126  # the image's user may be another one
trap 'signalled=1' TERM  # the client passes it on
directory=$(mktemp -d) && mkfifo "$directory/stdin" && exec 3<>"$directory/stdin" || exit 126
rm -r "$directory"
exec 4>&2 2>/dev/null  # Bash reports there which of the two below a signal has ended
$docker "$@" <&3 2>&4 3<&- 4>&- &
client=$!
(
    for ((index = 0; index < count; index++)); do
        variable=@SENT@$index
        printf '%s\\0' "${!variable}"
    done
    printf '\\0'
) >&3 4>&- &
writer=$!
while
    wait "$client"
    [ -e "/proc/$client" ]  # a signal has ended the wait; not kill -0: with sudo it is another user's process
do :; done
wait "$client"
code=$?
kill "$writer"
[ "$code" -lt 125 ] || $docker rm -f "$name" >/dev/null 2>&1
if [ -s "$mark" ] && [ "$code" -lt 125 ] && [ -z "$signalled" ]; then
    echo "@NOT_STARTED@: it has ended with exit code $code" >&4
    code=126
fi
exit "$code"
""".replace("@SENT@", SENT).replace("@NOT_STARTED@", NOT_STARTED)
)

# Run by Bash beside the container, for a command beside the program: $1 is the name of the program's container, $2 the
# number of variables, $3 that of the words of the command, which follow; then as above. If the program does not run,
# the command gets a container of its own, which ends with this script: its stdin is then closed. The variables are in a
# file for docker, quoted: it takes one line for each, in UTF-8. The command's processes have the marks of its run.
ENTER = (
    _FIND_DOCKER
    + """
name=$1 count=$2
command=("${@:4:$3}")
shift "$((3 + $3))"
directories=("${@:2:$1}")
shift "$((1 + $1))"
PATH=$PATH:/usr/local/bin:/usr/bin:/bin HOME=$TPUX_RUN_HOME
if ! find_docker; then
    explain >&2
    echo 'tpux: docker cannot be used; the command was not run@WAY_OUT@' >&2
    exit 126
fi
umask 077
private=$(mktemp -d) || exit 126
trap 'rm -rf "$private"' EXIT
trap 'exit 143' HUP TERM
if [ "$($docker inspect --format '{{.State.Running}}' "$name" 2>/dev/null)" != true ]; then
    for directory in "${directories[@]}"; do
        (umask 022 && mkdir -p -- "$directory") || exit 126
    done
    name=$name-exec-$$
    mkfifo "$private/stdin" "$private/ready" || exit 126
    $docker run --name="$name" "${@:2}" <"$private/stdin" >"$private/ready" &
    exec 3>"$private/stdin"
    if ! read -r ready <"$private/ready"; then
        echo "tpux: no container could be started for the command; it was not run@WAY_OUT@" >&2
        exit 126
    fi
fi
(
    export LC_ALL=C
    for ((index = 0; index < count; index++)); do
        variable=@SENT@$index
        printf '%s=%q\\n' "$variable" "${!variable}"
    done
) >"$private/variables"
terminal=
[ ! -t 0 ] || terminal="--tty --env=TERM=$TERM"
import='for sent in ${!@SENT@*}; do eval "export ${!sent}"; unset "$sent"; done; unset sent; exec "$@"'
$docker exec --interactive $terminal --env-file="$private/variables" "$name" \\
    bash -c "$import" tpux-docker "${command[@]}" 3>&-
exit $?
""".replace("@SENT@", SENT).replace("@WAY_OUT@", " (--host does without it)")
)
# What a container runs in which only commands beside the program run.
HOLD = "echo ready; read -r"

# Run by Bash in the container, as its first process; $1 is the mark, the other arguments are the program. It passes
# SIGTERM on, once, to all processes, as a stop does outside of containers; and it ends the container when the client
# has ended.
INIT = """
: >"$1"
shift
program= asked=
forward() {
    [ -z "$asked" ] || return
    asked=1
    [ -n "$program" ] || return
    # Not as in an image's entry point, or with --pid=host, where others would get it too.
    if [ $$ = 1 ]; then kill -s TERM -- -1; else kill -s TERM -- "-$program"; fi
}
trap forward TERM
trap 'exit 137' USR1
while IFS= read -r -d '' variable && [ -n "$variable" ]; do
    export "$variable"
done
exec 3<&0 </dev/null
(
    trap '' TERM
    read -r -u 3
    kill -s USR1 $$
) >/dev/null 2>&1 &
[ -z "$asked" ] || exit 143

# In a process group of its own, and so that it does not ignore SIGINT, as what a script starts with & does. Bash would
# then report its end in the output.
exec 4>&1 >/dev/null 2>&1
set -m
"$@" >&4 2>&1 3<&- 4>&- &
program=$!
while
    wait "$program"
    kill -s 0 "$program"
do :; done
wait "$program"
exit $?
"""
