"""What comes before any sink: batches are pulled from an iterator, gathered and put in order."""
