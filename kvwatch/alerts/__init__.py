"""When each alert fires and what it says, one file per alert. Pure."""
