"""The way back to ZooKeeper from every state of a migration before the last."""
