"""When each alert fires and what it says. Pure."""
