"""Screenshots of the web page, for maintainers: `python -m scripts.dev.shots FOLDER`."""
