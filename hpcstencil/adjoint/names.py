"""The names of the fields of adjoint and tangent problems, and the keys of the trees that they derive (`Problem.derived`)."""

ADJOINT, TRANSPOSED, GRADIENT, TANGENT = "adjoint.", "transposed.", "gradient.", "tangent."
SEED = "objective seed "  # and the number of a reduction: the derivative of the objective with respect to its terms
SAMPLES_SEED = "samples seed "  # and a table: the derivative of the objective with respect to what its receivers record
CELLS = "extreme cells "  # and the number of a reduction: a field, 1 in the cells that have its value, and 0 elsewhere
OF_APART = "apart "  # and the name of a field: the part of its time derivative that a two-step method treats apart
OBJECTIVE = "objective"

END, START, PRODUCTS = "end", "start", "products"  # keys of `Problem.derived`
SAMPLED, REMEMBERED, EXTREMA = "sampled", "remembered", "extrema"  # three more such keys
