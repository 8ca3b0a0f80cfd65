"""The command `noisescale`: reading files, printing, drawing. What it computes lies in the other folders."""
