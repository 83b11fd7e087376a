"""Archives that something happened to: one file of a real one is damaged, lost, exchanged or set back, and what
'kbackup verify' and a restore make of it is judged. `python -m scripts.soak.mutation` runs many cases."""
