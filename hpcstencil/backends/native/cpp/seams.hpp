// Seams: where the parts of two threads meet when stepping in place. There, each level begins ``shift`` planes further
// in the direction of the sweep than level 0, so one of the threads, the giver, needs nothing of the other. It hands
// over the values that the other thread, the taker, needs of it, level by level, before it overwrites them. Nothing is
// computed twice. README.md has a picture.
#pragma once
#include "field_drift.hpp"
#include "threads.hpp"

// What is handed over at the seams of a sweep: of each field that a level has made, some planes next to the seam.
// They lie in the memory of the seam from plane ``first`` on, except those of level 0, which the taker fetches itself.
struct HandOver {
    List<long> shift{LEVELS}, most{LEVELS};  // most: planes of any field
    Matrix<long> planes{LEVELS, FIELDS}, first{LEVELS, FIELDS};
    long total = 0;  // planes in the memory of a seam

    void lay_out(const Pipeline& pipe) {
        const bool faces = depend_on_fields();
        for (int q = 0; q < pipe.levels; q++) shift[q] = pipe.level[0].reach[0] - pipe.level[q].reach[0];
        for (int q = pipe.levels - 1; q >= 0; q--) {
            for (int again = 0; again < 1 + faces; again++)  // fields of one level may depend on each other at faces
                for (int f = 0; f < FIELDS; f++)
                    if (ring(pipe, q, f) >= 0) planes[q][f] = needed(pipe, q, f, faces);
            most[q] = q ? 0 : pipe.level[0].reach[0];  // where the taker stores results
            for (int f = 0; f < FIELDS; f++) {
                most[q] = max(most[q], planes[q][f]);
                if (q) first[q][f] = total, total += planes[q][f];
            }
        }
    }

    // The planes beyond the seam of level q that the taker reads, or has to store, of the values that q makes of f.
    // With ``faces``, ghost cells depend on fields.
    long needed(const Pipeline& pipe, int q, int f, bool faces) const {
        long sum = faces ? beside(pipe, q, q, f) : 0;
        for (int p = q + 1; p < pipe.levels; p++) {
            each_input(pipe.level[p], [&](const Input& input, bool) {
                if (field_of[input.array] == f) sum = max(sum, shift[p] - shift[q] + input.reach[0]);
            });
            if (ring(pipe, p, f) >= 0) return sum;
            if (faces) sum = max(sum, beside(pipe, q, p, f));
        }
        return max(sum, pipe.level[0].reach[0] - shift[q]);
    }

    // Whether ghost cells beyond the other axes depend on fields beside them.
    static bool depend_on_fields() {
        for (int n = 0; n < ARRAYS; n++)
            for (int a = 1; a < AXES; a++)
                if (arrays[n].face[a][0].nexts || arrays[n].face[a][1].nexts) return true;
        return false;
    }

    // The planes of f in which ghost cells of fields that level p makes depend on it.
    long beside(const Pipeline& pipe, int q, int p, int f) const {
        long sum = 0;
        for (int g = 0; g < FIELDS; g++) {
            const int made = ring(pipe, p, g);
            for (int a = 1; a < AXES && made >= 0; a++)
                for (const Face& face : arrays[pipe.ring[made].array].face[a])
                    for (int n = 0; n < face.nexts; n++)
                        if (field_of[face.next[n]] == f) sum = max(sum, shift[p] - shift[q] + planes[p][g]);
        }
        return sum;
    }

    // The ring of the values that level q makes of f; -1 if it makes none.
    static int ring(const Pipeline& pipe, int q, int f) {
        const Pass& pass = passes[pipe.level[q].pass];
        for (int o = 0; o < pass.outputs && q; o++)
            if (field_written(pass, o) == f) return pipe.output(q, o);
        return q ? -1 : pipe.load[f];
    }
};

// The memory of a seam, and how many tiles each level has handed over in this sweep.
struct Seam {
    real* data = nullptr;
    long rows_before, plane, pitch;  // rows_before: before row 0
    List<long> tiles{LEVELS};

    real* row(long plane_, long j) const { return data + plane_ * plane + (j + rows_before) * pitch; }
    void hand_over(int q, long count) { __atomic_store_n(&tiles[q], count, __ATOMIC_RELEASE); }
    void await(int q, long count) const {
        wait_until([&] { return __atomic_load_n(&tiles[q], __ATOMIC_ACQUIRE) >= count; });
    }
};
