"""What every other room shares: errors, names, specs, verdicts, quantities, statistics. No torch."""
