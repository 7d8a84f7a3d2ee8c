"""What sinks of tables share: the map, the workers that apply changes, loads, and what is set
aside. The settings of each sink name a `TableDatabase`."""
