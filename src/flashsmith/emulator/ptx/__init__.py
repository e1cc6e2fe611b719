"""PTX text as typed instructions."""
