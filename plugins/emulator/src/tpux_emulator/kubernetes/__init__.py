"""A Kubernetes API beside the TPU API: pods on TPU nodes, JobSet and Kueue, as far as tpux uses them."""
