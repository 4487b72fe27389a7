"""How easily one sees through the code: sizes, depths and costs that a design is judged by."""
