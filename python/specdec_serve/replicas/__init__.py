"""Several replicas of one engine behind one API."""
