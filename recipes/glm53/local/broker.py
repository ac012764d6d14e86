"""Dynamo's event plane on loopback: a ZeroMQ forwarder between publishers and subscribers.

Without a broker each Dynamo publisher listens on all interfaces. Usage:
``python -m glm53.local.broker PUBLISHERS_ADDRESS SUBSCRIBERS_ADDRESS``
"""

from __future__ import annotations

import sys

import zmq

__all__ = ["main"]


def main(publishers: str, subscribers: str) -> None:
    """Bind both addresses and forward until the process ends."""
    context = zmq.Context()
    inward, outward = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    inward.bind(publishers)
    outward.bind(subscribers)
    zmq.proxy(inward, outward)


if __name__ == "__main__":
    main(*sys.argv[1:])
