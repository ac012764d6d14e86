"""A process's way to Mooncake: blocks looked up, loaded and stored under deadlines, and the master asked how it is."""
