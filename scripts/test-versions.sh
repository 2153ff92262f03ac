#!/bin/sh
# Runs the tests of core and of the plugin local on other Pythons than the one that `make test` uses, each in a separate
# virtual environment. The arguments are uv and the versions; those that are not installed are left out.
set -eu
cd "$(dirname "$0")/.."
uv=$1
shift
own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for version in "$@"; do
    [ "$version" != "$own" ] || continue
    python=
    for candidate in "python$version" "$HOME/.pyenv/versions/$version".*/bin/python; do
        if "$candidate" -c 'import venv' 2> /dev/null; then python=$candidate; fi
    done
    if [ -z "$python" ]; then
        echo "Python $version: not installed"
        continue
    fi
    echo "Python $version:"
    venv=.cache/venv-$version
    test -x "$venv/bin/python" || "$python" -m venv --without-pip "$venv"
    "$uv" pip install --quiet --python "$venv/bin/python" --constraint constraints.txt --group dev \
        --editable core --editable plugins/local --editable plugins/ssh --editable plugins/testing
    "$venv/bin/python" -m pytest -n 5 core/tests plugins/local/tests tests/test_end_to_end.py
done
