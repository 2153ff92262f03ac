"""The commands `tpux ssh`, `tpux ssh-config` and `tpux tunnel`."""
