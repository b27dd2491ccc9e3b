"""`glass report`: a run as one HTML file that needs nothing else, not even a network.

    page.write_report(Path("report.html"), history, facts, findings, name="runs/quickstart")

The text is HTML and reads without JavaScript; the charts are plotly's, whose code travels inside the file.
"""
