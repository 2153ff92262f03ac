"""TPU VMs on Google Cloud: the allocators `tpu-vm` and `queued-resources`, and the commands `tpux tpu`."""
