"""Write every generated document: python -m scripts.docs"""

from __future__ import annotations

from pathlib import Path

from scripts.docs.commands import commands_document
from scripts.docs.requests import write_table
from scripts.docs.schemas import schema_documents

ROOT = Path(__file__).parents[2]


def generated() -> dict[str, str]:
    """Path below the root: text."""
    return {"infra/docs/commands.md": commands_document()} | {
        f"formats/schema/{name}": text for name, text in schema_documents().items()
    }


def main() -> None:
    for path, text in generated().items():
        (ROOT / path).write_text(text, encoding="utf-8")
    write_table(ROOT)


if __name__ == "__main__":
    main()
