// The bridge from XLA's foreign function interface to generated programs: it finds the program by its number and fills a
// `Call` (pipeline.hpp) from the buffers, in the order in which call.py gives them.
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

struct Call {  // as in pipeline.hpp
    const void* const* fields;
    const void* const* ghosts;
    void* const* results;
    const double* parameters;
    const double* constants;
    const double* const* coordinates;
    const double* clock;
    int64_t capacity[3], count[3], margin[3], width[3];
    int32_t wraps[3], boundary[3][2];
    int64_t threads, cache, far;
    void* area;
    int64_t every;
};

static std::unordered_map<int64_t, void (*)(const Call*)> programs;
static std::unordered_map<int64_t, void*> areas;
static std::mutex lock;

extern "C" void register_program(int64_t number, void (*advance)(const Call*)) {
    std::lock_guard<std::mutex> guard(lock);
    programs[number] = advance;
}

extern "C" void register_area(int64_t number, void* area) {
    std::lock_guard<std::mutex> guard(lock);
    areas[number] = area;
}

static ffi::Error run(ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t number, ffi::Span<const int64_t> axes,
                      ffi::Span<const int64_t> margin, ffi::Span<const int64_t> width, ffi::Span<const int64_t> received,
                      ffi::Span<const int64_t> wraps, ffi::Span<const int64_t> touches_always, int64_t threads, int64_t cache, int64_t far,
                      int64_t area, int64_t every) {
    void (*advance)(const Call*) = nullptr;
    Call call{};
    {
        std::lock_guard<std::mutex> guard(lock);
        auto found = programs.find(number);
        if (found != programs.end()) advance = found->second;
        auto shared = areas.find(area);
        if (shared != areas.end()) call.area = shared->second;
    }
    if (!advance) return ffi::Error::Internal("this native program is not loaded");
    size_t next = 0;
    auto take = [&]() { return args.get<ffi::AnyBuffer>(next++).value(); };
    std::vector<const void*> fields;
    std::vector<void*> results;
    double zero = 0;
    const double* coordinates[3] = {&zero, &zero, &zero};
    const void* ghosts[6] = {};
    for (int a = 0; a < 3; a++) call.capacity[a] = call.count[a] = 1;
    for (size_t f = 0; f < rets.size(); f++) {
        ffi::AnyBuffer field = take();
        fields.push_back(field.untyped_data());
        results.push_back(rets.get<ffi::AnyBuffer>(f).value()->untyped_data());
        for (size_t a = 0; a < axes.size(); a++) call.capacity[axes[a]] = field.dimensions()[a];
    }
    for (size_t n = 0; n < received.size(); n++)
        if (received[n]) ghosts[2 * axes[n / 2] + n % 2] = take().untyped_data();
    call.parameters = static_cast<const double*>(take().untyped_data());
    call.constants = static_cast<const double*>(take().untyped_data());
    const int64_t* counts = static_cast<const int64_t*>(take().untyped_data());
    const int32_t* touches = static_cast<const int32_t*>(take().untyped_data());
    call.clock = static_cast<const double*>(take().untyped_data());
    for (size_t a = 0; a < axes.size(); a++) {
        int64_t b = axes[a];
        coordinates[b] = static_cast<const double*>(take().untyped_data()) + margin[a];
        call.count[b] = counts[a];
        call.margin[b] = margin[a];
        call.width[b] = width[a];
        call.wraps[b] = static_cast<int32_t>(wraps[a]);
        for (int side = 0; side < 2; side++) call.boundary[b][side] = touches_always[2 * a + side] || touches[2 * a + side];
    }
    call.fields = fields.data();
    call.results = results.data();
    call.ghosts = ghosts;
    call.coordinates = coordinates;
    call.threads = threads, call.cache = cache, call.far = far, call.every = every;
    advance(&call);
    return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(run_program, run,
                              ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("number")
                                  .Attr<ffi::Span<const int64_t>>("axes")
                                  .Attr<ffi::Span<const int64_t>>("margin")
                                  .Attr<ffi::Span<const int64_t>>("width")
                                  .Attr<ffi::Span<const int64_t>>("received")
                                  .Attr<ffi::Span<const int64_t>>("wraps")
                                  .Attr<ffi::Span<const int64_t>>("boundary")
                                  .Attr<int64_t>("threads")
                                  .Attr<int64_t>("cache")
                                  .Attr<int64_t>("far")
                                  .Attr<int64_t>("area")
                                  .Attr<int64_t>("every"));
