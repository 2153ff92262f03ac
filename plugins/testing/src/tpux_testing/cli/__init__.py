"""Commands for authors of plugins, which are added to the groups `plugins` and `config` of core."""
