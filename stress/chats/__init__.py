"""Kill fine-tuning jobs, and compare every row with transformers and a simple packer."""
