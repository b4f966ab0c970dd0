"""Messages about what is stored: files of jobs, data sets, what each user keeps."""
