"""What users hand to a stream: stamps, windows and batches, checked before they are used."""
