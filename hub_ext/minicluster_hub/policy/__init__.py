"""The active policy and placement: choice, trial and withdrawal; custom policies and their sandbox."""
