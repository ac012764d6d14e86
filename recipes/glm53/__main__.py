"""The ``glm53`` command; says which extra to install if its libraries are missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit code 2 if the extra that the command needs is not installed."""
    extra = "recipes"
    try:
        from glm53.cli import app

        extra = "demo"  # what only some commands import
        app()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("glm53", "vllm_blhnc"):
            raise
        print(
            f"glm53: the Python package {error.name!r} is not installed. This command needs the extra {extra!r}: "
            f"run `pip install '.[{extra}]'` in the folder of glm53-blackwell.",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
