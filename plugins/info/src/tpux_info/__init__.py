"""`tpux info`: the machines that jobs hold and wait for."""
