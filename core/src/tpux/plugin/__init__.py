"""The contract between core and plugins, and the loader of what is installed."""
