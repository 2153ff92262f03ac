"""The commands `tpux ssh` and `tpux ssh-config`."""
