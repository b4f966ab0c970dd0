"""What a cell may call. Never needed: plain PyTorch works; each works outside of a job as well."""
