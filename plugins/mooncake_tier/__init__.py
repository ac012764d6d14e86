"""A DRAM tier for KV blocks on stock Mooncake: keys that cannot collide, objects that prove themselves, calls that end.

Installed but idle: nothing happens until a client is connected or ``mooncake-tier serve`` is run. Each folder imports
of the others only those before it: `client`, `identity`, `events`, `node`, `offloading`, `store`.
"""
