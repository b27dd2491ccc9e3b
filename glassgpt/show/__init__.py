"""Showing records to people: in the terminal, as pictures, as pages. Reads the journal's records only."""
