"""The ``glm53`` command; says which extra to install if its libraries are missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit code 2 if the ``recipes`` extra is not installed."""
    try:
        from glm53.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("glm53", "vllm_blhnc"):
            raise
        print(
            f"glm53: the Python package {error.name!r} is not installed. The command line needs the extra: "
            "pip install 'glm53-blackwell[demo]'",
            file=sys.stderr,
        )
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
