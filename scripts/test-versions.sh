#!/bin/sh
# Runs the tests of core and of the plugin local on other Pythons than the one that `make test` uses, each in a separate
# virtual environment. The arguments are uv and the versions; those that are not installed are left out. With --quick
# before them, all modules are imported, and only tests run that read annotations, docstrings or signatures; the types of
# the oldest version are checked by mypy's `python_version`, in `make lint`.
set -eu
cd "$(dirname "$0")/.."
quick=
if [ "$1" = --quick ]; then
    quick=1
    shift
fi
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
        --editable core --editable plugins/local --editable plugins/ssh --editable plugins/testing --editable plugins/worker-tools
    "$venv/bin/python" -c '
import importlib, pkgutil, tpux, tpux_local, tpux_ssh, tpux_testing
for package in (tpux, tpux_local, tpux_ssh, tpux_testing):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
'
    if [ -n "$quick" ]; then
        "$venv/bin/python" -m pytest -n 0 core/tests/test_config_arguments.py \
            core/tests/test_config_read.py core/tests/test_descriptions.py \
            core/tests/test_section_booleans.py core/tests/test_section_methods.py plugins/testing/tests/test_builders.py \
            plugins/testing/tests/test_static_contracts.py
    else
        "$venv/bin/python" -m pytest -n 5 core/tests plugins/local/tests tests/test_end_to_end.py
    fi
done
