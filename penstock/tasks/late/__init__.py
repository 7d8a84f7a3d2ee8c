"""Late columns: what a transform neither reads nor makes goes around the JVM, in side files."""
