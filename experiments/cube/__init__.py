"""What the CUBE paper claims about networks (seed 000, "AI deep learning layer" and "Self-taught learning"), tried on
windows of frames from simulated cars: `ablations` holds the studies, and the README what came."""
