"""Documents that are made from the code: `python -m scripts.docs` writes them, a test compares them."""
