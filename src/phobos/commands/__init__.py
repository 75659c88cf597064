"""One file a command of `phobos-cli`: its flags, and a short body that calls the part doing the work."""
