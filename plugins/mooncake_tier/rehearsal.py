"""Set up a client of the store and ask it for one key: what `mooncake_tier.connection.rehearse` runs."""

from __future__ import annotations

import json
import os
import sys

from mooncake_tier.stock import MooncakeStore

__all__: list[str] = []


def main() -> int:
    """Argument: a `StoreAddress` as JSON. Exit code 0 if the master answered; else the last line says why."""
    address = json.loads(sys.argv[1])
    try:
        store = MooncakeStore(**address, buffer_bytes=1 << 20)
        [code] = store.exists(["mooncake-tier/rehearsal"])
    except Exception as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    if code < 0:
        print(
            f"master={address['master']} answered a lookup with {code}: it does not serve. Look at its log, and run "
            "`mooncake-tier doctor`.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # closing the store takes a second, and nothing depends on it
