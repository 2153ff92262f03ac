#!/bin/sh
# A command like conda and micromamba, for tests. Environments are in ~/envs; stand_in.py solves and installs.
echo "$@" >>"$HOME/.cache-calls"
after() { # OPTION ARGUMENTS: print what follows the option
    option=$1
    shift
    while [ "$1" != "$option" ]; do shift; done
    echo "$2"
}
case $* in
    "shell.bash hook" | "shell hook --shell bash")
        cat <<HOOK
${0##*/}() {
    [ "\$1" = activate ] && [ -d "\$HOME/envs/\$2" ] || return
    export CONDA_PREFIX="\$HOME/envs/\$2" CONDA_DEFAULT_ENV="\$2" PATH="\$HOME/envs/\$2/bin:\$PATH"
}
HOOK
        exit
        ;;
    *--help*) echo "list create remove ${OLD_MICROMAMBA:-update}"; exit ;;
esac
case "${0##*/} $*" in
    "micromamba run"* | "micromamba "*-y*) ;;
    micromamba*)
        echo "Confirm changes: [Y/n]"
        exit 1
        ;;
esac
prefix=$HOME/envs/$(after -n "$@")
case "$1 $2" in
    run*)
        [ -d "$prefix/conda-meta" ] || { echo "EnvironmentLocationNotFound: $prefix" >&2; exit 1; }
        shift 3
        eval "${ACTIVATION-}" # as a script in etc/conda/activate.d
        CONDA_PREFIX=$prefix PATH=$prefix/bin:$PATH "$@" && exit
        code=$?
        printf '%s\n' '' "ERROR conda.cli.main_run:execute(125): \`conda run\` failed. (See above for error)" >&2
        exit $code
        ;;
    "env remove") [ -d "$prefix" ] && rm -r "$prefix"; exit ;;
    "env create") [ ! -e "$prefix" ] || { echo "the environment exists already" >&2; exit 1; } ;;
esac
exec "$STAND_IN_PYTHON" "$STAND_IN" "$prefix" "$@"
