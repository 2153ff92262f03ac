"""The machines behind the nodes."""
