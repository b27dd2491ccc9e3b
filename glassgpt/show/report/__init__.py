"""`glass report`: a run as one HTML file that needs no other file and no network.

    page.write_report(Path("report.html"), run_log, facts, findings, name="runs/quickstart")

The text is HTML and reads without JavaScript. The charts are plotly's, whose code is inside the file.
"""
