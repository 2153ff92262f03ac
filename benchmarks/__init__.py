"""What tpux costs: `make bench`. README.md says how a figure is measured and how to add one."""
