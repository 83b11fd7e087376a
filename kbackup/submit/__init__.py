"""For `spark-submit`, which wants a file and puts its folder first on everybody's path: so it has a folder of its own.

spark-submit --master … "$(python -m kbackup.submit)" backup …
"""
