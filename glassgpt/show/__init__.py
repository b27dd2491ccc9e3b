"""What people see: terminal output, and the HTML report."""
