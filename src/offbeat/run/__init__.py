"""One run in one place: data and a job in, a record and a folder out."""
