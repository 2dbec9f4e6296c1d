"""What is made of evaluations: tables of several, and files for other tools."""
