"""Reading records: what runs there are, and later what they mean. No torch in here."""
