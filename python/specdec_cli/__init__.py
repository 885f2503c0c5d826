"""The command line, `specdec-native`."""
