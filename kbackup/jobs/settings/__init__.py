"""Settings of a cluster on a target: what is changed there, what stood before, and the way back."""
