"""What is not in the papers: attention of decoders."""
