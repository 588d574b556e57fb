"""The vendor acme for Levelfield: data in vendors/acme/."""
