"""A DRAM tier for KV blocks on stock Mooncake: keys that cannot collide, objects that prove themselves, calls that end.

Installed but idle: nothing happens until a client is connected or ``mooncake-tier serve`` is run. The modules:
`keys` (names of blocks), `integrity` (the trailer of each object), `client` (lookup, load and store under a deadline),
`node` (master and pool of one machine), `doctor` (what is wrong with a machine), `plan` (capacity, plain arithmetic).
"""
