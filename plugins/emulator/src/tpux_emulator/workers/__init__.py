"""The workers of nodes: SSH servers on this machine, or addresses only."""
