"""Puts load on a server or an engine and measures it: `specdec-native bench`."""
