"""What any sink does with changes that it cannot store: dead letters and suspended tables."""
