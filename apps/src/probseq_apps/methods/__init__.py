"""What `classify` and `regress` share: models, predictions, and what is done with them after."""
