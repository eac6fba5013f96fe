"""Commands that diagnose: doctor, probe, deadletters."""
