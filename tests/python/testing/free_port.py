"""A port of this machine at which nothing listens."""

import random
import socket


def free_port() -> int:
    """The port is of a range in which the kernel chooses none for others."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
