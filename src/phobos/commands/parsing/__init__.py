"""What commands share: their flags in groups, the help page, what is said of a command line that cannot be read."""
