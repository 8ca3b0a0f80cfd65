"""Everything that needs a file, a config or a picture. The library is `noisescale`."""
