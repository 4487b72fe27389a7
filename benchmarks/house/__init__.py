"""Figures that a design is judged by: sizes, depths and costs."""
