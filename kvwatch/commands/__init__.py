"""One thin module for each subcommand."""
