"""Write the documents and manual pages that come from the code, and print which have changed."""

from __future__ import annotations

import argparse
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
    argparse.ArgumentParser(prog="python -m scripts.docs", description=__doc__).parse_args()
    requests = "infra/docs/requests.md"
    texts = generated()
    texts[requests] = requests_document((ROOT / requests).read_text("utf-8"))
    for path, text in texts.items():
        file = ROOT / path
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(f"written: {path}")


if __name__ == "__main__":
    main()
