"""What is checked and counted while a kernel runs."""
