"""One file per verdict; each is a pure function of `Signals`."""
