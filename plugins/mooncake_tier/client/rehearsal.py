"""Set up a client of the store and ask it for one key: what `mooncake_tier.client.connection.rehearse` runs."""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

from mooncake_tier.stock import MooncakeStore

__all__: list[str] = []


def main() -> NoReturn:
    """Argument: a `StoreAddress` as JSON. Exit code 0 if the master answered; else the last line says why.

    It ends without closing the store, on which nothing depends: that takes a second, with etcd 30.
    """
    address = json.loads(sys.argv[1])
    said = ""
    try:
        store = MooncakeStore(**address, buffer_bytes=1 << 20)
        [code] = store.exists(["mooncake-tier/rehearsal"])
        if code < 0:
            said = f"master={address['master']} answered a lookup with {code}: it does not serve. Look at its log."
    except Exception as error:
        said = " ".join(str(error).split())
    if said:
        print(said, file=sys.stderr, flush=True)
    os._exit(1 if said else 0)


if __name__ == "__main__":
    main()
