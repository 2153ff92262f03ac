#!/bin/sh
# Tests core and the plugin local on every other Python (3.10 and later) that the machine has, each in an
# environment of its own. The one that `make test` uses is left out.
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
        echo "Python $version: not on this machine"
        continue
    fi
    echo "Python $version:"
    venv=.cache/venv-$version
    test -x "$venv/bin/python" || "$python" -m venv --without-pip "$venv"
    "$uv" pip install --quiet --python "$venv/bin/python" --constraint constraints.txt --group dev \
        --editable core --editable plugins/local
    "$venv/bin/python" -m pytest -n 2 core/tests plugins/local/tests tests/test_spine.py
done
