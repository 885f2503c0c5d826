"""One interleaved comparison of this engine with the engines that run on the same machine."""
