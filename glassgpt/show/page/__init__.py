"""The page about runs, live in a browser (`glass page`) or still as one offline file (`glass report`).

view.py      all that the page says about a run, as one JSON document
panels.py    which charts there are
series.py    the rows of their curves, decimated
stream.py    what is new of a run, for one reader
"""
