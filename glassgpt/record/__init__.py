"""What a run writes about itself: the journal, its folder, the ledger of its time, findings. No torch."""
