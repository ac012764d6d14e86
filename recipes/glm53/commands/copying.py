"""The script that copies a folder into the volume that all nodes share: whole or not at all, and once."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

__all__ = ["copy_script"]

#: One line a file, size and path; equal lists are taken for equal folders.
_LIST = "cd \"$1\" && find . -type f ! -name .complete -printf '%s %p\\n' | LC_ALL=C sort | sha256sum"


def copy_script(about: str, arguments: Sequence[str], root: str, inside: Sequence[str]) -> str:
    """``upload.sh [...] FOLDER PLACE``. PLACE is a path in the volume, such as ``checkpoints/tuned``.

    about: what the volume belongs to. arguments: names of those before FOLDER, which `inside` may use. root: where the
    volume is. inside: shell that defines ``inside COMMAND...``, which runs where the volume is.
    """
    names = [*arguments, "FOLDER", "PLACE"]
    usage = f"usage: upload.sh {' '.join(names)}"
    lines = [
        "#!/usr/bin/env bash",
        f"# Copies a folder into the volume of {about}, whole and once: upload.sh {' '.join(names)}",
        "set -euo pipefail",
        *(f'{name.lower()}="${{{at}:?{usage}}}"' for at, name in enumerate(names, 1)),
        f'to={shlex.quote(root)}"/$place"',
        "fail() {",
        '    echo "upload.sh: $1" >&2',
        "    exit 1",
        "}",
        "listed() { " + _LIST + "; }",
        *inside,
        'own=$(listed "$folder")',
        'if inside test -e "$to/.complete"; then',
        '    there=$(inside cat "$to/.complete")',
        '    [ "$there" = "$own" ] || fail "$to holds another folder; give this one another name."',
        '    echo "$to is there already"',
        "    exit 0",
        "fi",
        'if inside test -e "$to"; then fail "$to is there, and was not copied by this script; move it away."; fi',
        'inside rm -rf "$to.part"',
        'inside mkdir -p "$to.part"',
        'tar --directory "$folder" --create --file - . | inside tar --directory "$to.part" --extract --file -',
        f'arrived=$(inside bash -c {shlex.quote(_LIST)} list "$to.part")',
        '[ "$arrived" = "$own" ] || fail "what arrived in $to.part is not what was sent; run it again."',
        'inside bash -c \'echo "$3" > "$1/.complete" && mv "$1" "$2"\' keep "$to.part" "$to" "$own"',
        'echo "copied to $to"',
    ]
    return "\n".join(lines) + "\n"
