"""What the generated pages of the repository consist of: tables, sentences, a picture."""
