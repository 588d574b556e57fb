"""Several runs that answer one question: where two frameworks differ, how a prediction holds, how large noise is."""
