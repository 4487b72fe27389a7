"""Two rows of the table, which are judged on the same test samples, beside each other.

A user reports of each row what its measure adds up, in some 64 sums: of one sample each, or of
several, which are dealt to the sums alike in every row. How the differences of two rows' sums
spread is the noise of the rows' difference, whatever samples that are hard for both add to either.
So rows of any two evaluations can be compared, and nothing is held for the next one.

Errors of numbers leave a device in sums of five samples at least: one alone could tell a label.
"""
