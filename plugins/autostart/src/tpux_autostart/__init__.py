"""`tpux supervisor install` and `uninstall`: let systemd or cron start the supervisor."""
