"""What sinks of tables share: the map, the workers that apply changes, loads, and what is set
aside. Each sink gives a `TableDatabase`."""
