"""Parts of the export stage: the checks that a folder must pass, and the program that opens it from outside."""
