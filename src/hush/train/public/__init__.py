"""What is public of the data: learnt without clipping and noise, and the source of what guides the private part."""
