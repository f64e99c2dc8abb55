"""The command ``gear``. The only package that knows every other one."""

import sys


def main() -> None:
    """Run the command line; what the user can correct is one line on stderr and exit code 2."""
    try:
        from gear_rl.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"gear: the command needs {error.name}; install it with: pip install 'gear-rl[trl]'")
    app()
