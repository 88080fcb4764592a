"""`probseq bench`: what the methods cost in time and memory, beside what others do."""
