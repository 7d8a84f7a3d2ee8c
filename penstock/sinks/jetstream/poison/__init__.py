"""What cannot be published: `sift` tells it apart, `dead_letters` and `suspensions` keep it."""
