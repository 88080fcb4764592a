"""Reports: from the stored predictions of the runs to tables, JSON and plots."""
