"""The habits of other libraries, scikit-learn and river, and streams of text lines."""
