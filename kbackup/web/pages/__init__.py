"""The pages: each takes what a request looks at and gives a template what it shows."""
