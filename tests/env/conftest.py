"""The set-up's modules lie beside their program in env/, which is no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "env"))
