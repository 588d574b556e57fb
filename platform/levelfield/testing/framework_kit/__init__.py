"""What an author of a framework uses: a worked folder to begin with, and a check of every layout."""
