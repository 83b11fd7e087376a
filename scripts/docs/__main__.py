"""Write every generated document: python -m scripts.docs"""

from __future__ import annotations

from pathlib import Path

from scripts.docs.commands import PAGE, commands_document, configuration_document
from scripts.docs.library import library_document
from scripts.docs.man import manual_pages
from scripts.docs.requests import requests_document
from scripts.docs.schemas import output_schemas, schema_documents

OUTPUT_SCHEMAS = "infra/docs/json"
"""The folder of the schemas of what commands print with --json."""
ROOT = Path(__file__).parents[2]
MAN = "infra/man"
"""The folder of the manual pages."""


def generated() -> dict[str, str]:
    """Path below the root: text."""
    return {
        "infra/docs/commands.md": commands_document(),
        PAGE: configuration_document(ROOT),
        "infra/docs/python-reference.md": library_document(),
        **{f"formats/schema/{name}": text for name, text in schema_documents().items()},
        **{f"{OUTPUT_SCHEMAS}/{name}": text for name, text in output_schemas().items()},
        **{f"{MAN}/{name}": text for name, text in manual_pages().items()},
    }


def main() -> None:
    for path, text in generated().items():
        (ROOT / path).write_text(text, encoding="utf-8")
    page = ROOT / "infra/docs/requests.md"
    page.write_text(requests_document(page.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
