#!/bin/sh
# Runs the tests of core and of the plugin local on every installed Python (3.10 or later) except the one that
# `make test` uses, each in a separate virtual environment.
set -eu
cd "$(dirname "$0")/.."
uv=$1
own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for version in 3.10 3.11 3.12 3.13 3.14; do
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
        --editable core --editable plugins/local
    "$venv/bin/python" -m pytest -n 2 core/tests plugins/local/tests tests/test_end_to_end.py
done
