"""The active policy and placement: chosen, tried, taken back; a lab's custom policies in their sandbox."""
