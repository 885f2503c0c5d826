"""A port of this machine at which nothing listens."""

import random
import socket


def free_port() -> int:
    """Out of a range from which the kernel takes none for others meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
