"""What in the documents is made from the code: `python -m scripts.docs` writes it, a test compares it."""
