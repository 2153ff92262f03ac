#!/bin/bash
# Installs the newest JAX for TPUs into ~/jax, or the nightly one with the argument `nightly`.
# The command: cmd: ~/jax/bin/python train.py
set -eu
python3 -m venv "$HOME/jax"
pip="$HOME/jax/bin/python -m pip install --upgrade --quiet"
case ${1-stable} in
    nightly)
        $pip --pre jax jaxlib libtpu requests \
            -i https://us-python.pkg.dev/ml-oss-artifacts-published/jax/simple/ \
            -f https://storage.googleapis.com/jax-releases/libtpu_releases.html
        ;;
    *) $pip 'jax[tpu]' ;;
esac
"$HOME/jax/bin/python" -c 'import jax; print("jax", jax.__version__)'
