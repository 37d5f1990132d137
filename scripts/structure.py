"""Writes the README's list of files, one line each, from the first sentence of each module's docstring.

`python scripts/structure.py` rewrites it; `--check` only says whether it is current.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- structure: begin (scripts/check --fix writes this) -->", "<!-- structure: end -->"
FOLDERS = ("mesh", "node", "broker")


def structure() -> str:
    """A line for each file, grouped by folder."""
    lines: list[str] = []
    for top in FOLDERS:
        for folder in sorted({path.parent for path in (ROOT / top).rglob("*.py")}):
            files = [path for path in sorted(folder.glob("*.py")) if not _is_silent(path)]
            title = _sentence(folder / "__init__.py")
            lines += [f"**{folder.relative_to(ROOT)}/** {title}", ""]
            lines += [f"- `{path.name}` {_sentence(path)}" for path in files]
            lines.append("")
    return "\n".join(lines)


def _is_silent(path: Path) -> bool:
    """The folder's line says what __init__ would, and generated files say nothing."""
    return path.name == "__init__.py" or "_pb2" in path.name


def _sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    if not text:
        raise SystemExit(f"{path.relative_to(ROOT)} has no docstring: say in one sentence what it owns")
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s", first)[0].rstrip(":").replace("|", "\\|")


def main() -> int:
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    _, after = rest.split(END)
    current = f"{before}{BEGIN}\n\n{structure()}\n{END}{after}"
    if current == readme.read_text():
        return 0
    if "--check" in sys.argv:
        print("README.md: the list of files is not current; run scripts/check --fix")
        return 1
    readme.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
