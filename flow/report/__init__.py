"""The report of a run of the flow: ``run`` reads it, ``headline`` says what it came to, ``page`` shows it."""
