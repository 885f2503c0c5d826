"""Load on a server or an engine, and what it took: `specdec-native bench`."""
