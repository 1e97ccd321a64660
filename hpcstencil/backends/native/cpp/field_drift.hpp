// The distance by which fields are shifted in memory while they are stepped in place, see wavefront.hpp.
#pragma once
#include "pipeline.hpp"

// The field that the n-th result of a pass is a value of; -1 if it is none.
static inline int field_written(const Pass& pass, int n) { return field_of[pass.output[n] % ARRAYS]; }

// The distance by which a field is shifted towards lower indices.
struct Drift {
    long planes, rows;
};

// The drift of each field after each level of a sweep.
struct FieldDrift {
    Matrix<Drift> after{LEVELS, FIELDS};

    // Computes the drift. With ``flat``, planes are single rows and fields are shifted by planes only. Returns false if
    // steps in place are impossible, which is the case if
    // - a level reads a value that another level has overwritten, or an array that is not a value of a field,
    // - a level reads, across corners, an array that it overwrites itself,
    // - a step produces arrays that it does not start from.
    bool lay_out(const Pipeline& pipe, bool flat) {
        if (GIVEN < FIELDS) return false;
        List<int> newest{FIELDS}, written{FIELDS};
        after.cells.fill({});
        for (int f = 0; f < FIELDS; f++) newest[f] = pipe.load[f];
        for (int f = 0; f < FIELDS; f++)
            if (!can_fill_ghosts(pipe, newest, newest[f])) return false;
        for (int q = 1; q < pipe.levels; q++) {
            memcpy(after[q], after[q - 1], FIELDS * sizeof(Drift));
            const Pass& pass = passes[pipe.level[q].pass];
            bool possible = true;
            each_input(pipe.level[q], [&](const Input& input, bool) {
                int f = field_of[input.array];
                if (f < 0 || newest[f] != pipe.ring_of[pipe.level[q].step][input.array]) possible = false;
            });
            if (!possible) return false;
            List<char> made{FIELDS};
            for (int o = 0; o < pass.outputs; o++) {
                int f = field_written(pass, o);
                if (f < 0 || made[f]) return false;
                made[f] = true;
                Drift away = {0, 0};
                for (int r = written[f] + 1; r <= q; r++)
                    each_input(pipe.level[r], [&](const Input& input, bool first) {
                        const int* reach = input.reach;
                        if (field_of[input.array] != f) return;
                        long planes = reach[0] - pipe.level[r].ahead + pipe.level[q].ahead,
                             rows = reach[1] - pipe.level[r].reach[1] + pipe.level[q].reach[1];
                        if (r == q && !first && (reach[0] || reach[1] || reach[2])) {
                            // A level may overwrite only values that are not needed any more. Of the outermost rows, it
                            // reads only the cells straight beside its own, and overwrites them after loading them.
                            if (!input.straight) possible = false;
                            if (flat) planes = max(planes, AT_ONCE);
                            else rows += !reach[1];
                        }
                        away.planes = max(away.planes, planes), away.rows = max(away.rows, rows);
                    });
                if (!possible) return false;
                after[q][f].planes += away.planes, after[q][f].rows += away.rows;
                newest[f] = pipe.output(q, o);
            }
            for (int f = 0; f < FIELDS; f++)
                if (made[f] && !can_fill_ghosts(pipe, newest, newest[f])) return false;
                else if (made[f]) written[f] = q;
        }
        for (int f = 0; f < FIELDS; f++)
            if (newest[f] != pipe.store[f]) return false;
        return true;
    }

    // Makes the drift after the sweep at least that of another one. Fields are shifted further when they are last
    // computed; those that are never computed do not drift in any sweep.
    void widen(const Pipeline& pipe, const Drift* other) {
        for (int f = 0; f < FIELDS; f++) {
            int q = pipe.levels - 1;
            const Drift last = after[q][f];
            const Drift more = {max(0, other[f].planes - last.planes), max(0, other[f].rows - last.rows)};
            auto makes = [&](int q) {
                const Pass& pass = passes[pipe.level[q].pass];
                for (int o = 0; o < pass.outputs; o++)
                    if (field_written(pass, o) == f) return true;
                return false;
            };
            for (bool made = false; q > 0 && !made; q--)
                after[q][f].planes += more.planes, after[q][f].rows += more.rows, made = makes(q);
        }
    }

    // Whether the ghost cells of a ring can be filled as soon as its cells are computed.
    static bool can_fill_ghosts(const Pipeline& pipe, const List<int>& newest, int r) {
        const Ring& ring = pipe.ring[r];
        for (int a = 0; a < AXES; a++)
            for (int side = 0; side < 2 && ring.width[a]; side++) {
                const Face& face = arrays[ring.array].face[a][side];
                if (face.wall) return false;
                for (int n = 0; n < face.nexts; n++)
                    if (newest[field_of[face.next[n]]] != pipe.ring_of[ring.step][face.next[n]]) return false;
            }
        return true;
    }
};
