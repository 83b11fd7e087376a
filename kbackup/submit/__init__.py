"""The file for `spark-submit`, which puts the file's folder first on the path: so the file has a folder of its own.

spark-submit --master … "$(python -m kbackup.submit)" backup …
"""
