"""`specdec-native` and `python -m specdec_native`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line. Exit code 1 for an error, 2 for wrong usage."""
    try:
        from specdec_cli import main as cli  # noqa: PLC0415 - needs the optional packages
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(
            f"error: the command line needs the package {error.name}; "
            "install it with: pip install 'specdec-native[cli]'"
        )
    cli.run()


if __name__ == "__main__":
    main()
