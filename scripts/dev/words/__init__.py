"""Check names, docstrings, sizes and hints by the rules of the project's vocabulary.

    python -m scripts.dev.words            the folders that are clean: `make check` runs this
    python -m scripts.dev.words FOLDER…    every problem below these folders
    python -m scripts.dev.words --count    the number of problems of each folder, by rule

`vocabulary` holds the words, `exceptions` the names that may use them, `progress` the folders that are not yet clean.
"""
