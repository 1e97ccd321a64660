"""The names of the fields of adjoint and tangent problems, and the keys of the trees that they derive (`Problem.derived`)."""

ADJOINT, TRANSPOSED, GRADIENT, TANGENT = "adjoint.", "transposed.", "gradient.", "tangent."
# Prefixes. The number of a reduction follows:
SEED = "objective seed "  # the derivative of the objective with respect to the terms of the reduction
CELLS = "extreme cells "  # a field, 1 in the cells that have the value of the reduction, and 0 elsewhere
# The name of a table of receivers, or of a field, follows:
SAMPLES_SEED = "samples seed "  # the derivative of the objective with respect to the records of the table
OF_APART = "apart "  # the part of the field's time derivative that a two-step method treats separately
OBJECTIVE = "objective"

END, START, PRODUCTS = "end", "start", "products"  # keys of `Problem.derived`
SAMPLED, REMEMBERED, EXTREMA = "sampled", "remembered", "extrema"  # three more such keys
