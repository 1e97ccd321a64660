// The bridge from XLA's foreign function interface to generated programs. It finds the program by its number and
// fills a `Call` (call.hpp) from the buffers, in the order in which ffi_call.py passes them. It uses XLA's C
// interface, which is a single header.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include "call.hpp"
#include "xla/ffi/api/c_api.h"

static std::unordered_map<int64_t, int64_t (*)(const Call*)> programs;
static std::unordered_map<int64_t, EdgeExchange*> edges_by_number;  // of blocks, from 1 on; 0: none
static std::mutex lock;

extern "C" void register_program(int64_t number, int64_t (*advance)(const Call*)) {
    std::lock_guard<std::mutex> guard(lock);
    programs[number] = advance;
}

extern "C" void register_edges(int64_t number, EdgeExchange* edges) {
    std::lock_guard<std::mutex> guard(lock);
    edges_by_number[number] = edges;
}

static XLA_FFI_Error* failure(XLA_FFI_CallFrame* frame, const char* sentence) {
    XLA_FFI_Error_Create_Args error = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, sentence,
                                       XLA_FFI_Error_Code_INTERNAL};
    return frame->api->XLA_FFI_Error_Create(&error);
}

// The integers of an attribute, found by its name.
static const int64_t* integers(const XLA_FFI_Attrs& attributes, const char* name, size_t* size = nullptr) {
    for (int64_t n = 0; n < attributes.size; n++) {
        const XLA_FFI_ByteSpan& known = *attributes.names[n];
        if (known.len != strlen(name) || memcmp(known.ptr, name, known.len)) continue;
        if (attributes.types[n] == XLA_FFI_AttrType_SCALAR)
            return static_cast<const int64_t*>(static_cast<XLA_FFI_Scalar*>(attributes.attrs[n])->value);
        const XLA_FFI_Array& array = *static_cast<XLA_FFI_Array*>(attributes.attrs[n]);
        if (size) *size = array.size;
        return static_cast<const int64_t*>(array.data);
    }
    abort();  // ffi_call.py passes all of them
}

// The number of elements of a buffer.
static int64_t elements(const XLA_FFI_Buffer& buffer) {
    int64_t count = 1;
    for (int64_t a = 0; a < buffer.rank; a++) count *= buffer.dims[a];
    return count;
}

// The members of an ensemble, along the first axis of all buffers. ``call`` is that of member 0. Of the other members,
// fields and results lie ``field`` bytes further on each, and so do strips, numbers and sums of errors by their sizes.
struct Members {
    int64_t count, field, strip[6], parameters, error_sums;
    int64_t (*advance)(const Call*);
    const Call& call;
    const std::vector<const void*>& fields;
    const std::vector<void*>& results;

    int64_t step(int64_t member, int64_t threads) const {
        Call mine = call;
        std::vector<const void*> mine_fields;
        std::vector<void*> mine_results;
        const void* mine_ghosts[6];
        for (const void* each : fields)
            mine_fields.push_back(each ? static_cast<const char*>(each) + member * field : nullptr);
        for (void* each : results)  // null for errors, which are only summed
            mine_results.push_back(each ? static_cast<char*>(each) + member * field : nullptr);
        for (int n = 0; n < 6; n++) {
            const char* first = static_cast<const char*>(call.ghosts[n]);
            mine_ghosts[n] = first ? first + member * strip[n] : nullptr;
        }
        mine.fields = mine_fields.data(), mine.results = mine_results.data(), mine.ghosts = mine_ghosts;
        mine.parameters += member * parameters, mine.clock += member * 4, mine.threads = threads;
        if (mine.error_sums) mine.error_sums += member * error_sums;
        mine.member = member;
        return advance(&mine);
    }

    // Steps all members. Each thread takes whole members if that leaves few of them idle; they share nothing then.
    // Members whose edges are exchanged have the same order in all processes. Returns an error code, or 0.
    int64_t step_all() const {
        bool whole = !call.edges && (count % call.threads == 0 || count >= 4 * call.threads);
        std::atomic<int64_t> next{0}, failed{0};
        auto work = [&](int64_t threads) {
            for (int64_t member; (member = next++) < count;)
                if (int64_t error = step(member, threads)) failed = error;
        };
        std::vector<std::thread> helpers;
        try {
            for (int64_t n = 1; n < call.threads && whole; n++) helpers.emplace_back(work, 1);
        } catch (const std::system_error&) {  // the threads that could be started take all members
        }
        work(whole ? 1 : call.threads);
        for (std::thread& helper : helpers) helper.join();
        return failed;
    }
};

// XLA asks a handler before the first call for the version of the interface that it implements.
static void describe_interface(XLA_FFI_Metadata& asked) {
    asked.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    asked.traits = 0;
    asked.state_type_id = XLA_FFI_UNKNOWN_TYPE_ID;
}

extern "C" XLA_FFI_Error* run_program(XLA_FFI_CallFrame* frame) {
    if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
        describe_interface(*reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)->metadata);
        return nullptr;
    }
    const XLA_FFI_Attrs& given = frame->attrs;
    int64_t number = *integers(given, "number");
    int64_t (*advance)(const Call*) = nullptr;
    Call call{};
    {
        std::lock_guard<std::mutex> guard(lock);
        auto found = programs.find(number);
        if (found != programs.end()) advance = found->second;
    }
    if (!advance) return failure(frame, "this native program is not loaded");
    size_t next = 0, ndim = 0;
    auto buffer = [&]() { return static_cast<XLA_FFI_Buffer*>(frame->args.args[next++]); };
    auto take = [&]() { return buffer()->data; };
    const int64_t *axes = integers(given, "axes", &ndim), *margin = integers(given, "margin"),
                  *width = integers(given, "width");
    const int64_t *wraps = integers(given, "wraps"), *touches_always = integers(given, "boundary"),
                  *received = integers(given, "received");
    std::vector<const void*> fields;
    std::vector<void*> results;
    double zero = 0;
    const double* coordinates[3] = {&zero, &zero, &zero};
    const void* ghosts[6] = {};
    for (int a = 0; a < 3; a++) call.capacity[a] = call.count[a] = 1;
    size_t numbers = 0;
    const int64_t* section = integers(given, "section", &numbers);
    if (numbers > 1) call.section = section;
    int64_t errors = *integers(given, "errors");  // whose sums are the last result
    int64_t stored = frame->rets.size - (errors > 0);
    for (int64_t f = 0; f < (call.section ? section[2] : stored); f++) {
        const XLA_FFI_Buffer& field = *buffer();
        fields.push_back(field.data);
        const int64_t* cells = field.dims + field.rank - ndim;  // behind the device axis, if any
        for (size_t a = 0; a < ndim; a++) call.capacity[axes[a]] = cells[a];
    }
    for (int64_t f = 0; f < stored; f++)
        results.push_back(static_cast<XLA_FFI_Buffer*>(frame->rets.rets[f])->data);
    const int64_t members = call.members = *integers(given, "members"), itemsize = *integers(given, "itemsize");
    Members ensemble = {members, 0, {}, 0, 0, advance, call, fields, results};
    auto bytes_each = [&](const XLA_FFI_Buffer& all) { return elements(all) * itemsize / (members ? members : 1); };
    ensemble.field = bytes_each(*static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0]));
    if (errors) {
        const XLA_FFI_Buffer& sums = *static_cast<XLA_FFI_Buffer*>(frame->rets.rets[stored]);
        call.error_sums = static_cast<int64_t*>(sums.data);
        memset(sums.data, 0, elements(sums) * sizeof(int64_t));
        ensemble.error_sums = errors * 4;
        fields.resize(stored + errors), results.resize(stored + errors);
    }
    next += *integers(given, "room");  // arrays whose memory the results take
    for (size_t n = 0; n < 2 * ndim; n++)
        if (received[n]) {
            const XLA_FFI_Buffer& strip = *buffer();
            const int64_t place = 2 * axes[n / 2] + n % 2;
            ghosts[place] = strip.data, ensemble.strip[place] = bytes_each(strip);
        }
    const XLA_FFI_Buffer& parameters = *buffer();
    call.parameters = static_cast<const double*>(parameters.data);
    ensemble.parameters = elements(parameters) / (members ? members : 1);
    call.constants = static_cast<const double*>(take());
    const int64_t* counts = static_cast<const int64_t*>(take());
    const int32_t* touches = static_cast<const int32_t*>(take());
    call.clock = static_cast<const double*>(take());
    for (size_t a = 0; a < ndim; a++) {
        int64_t b = axes[a];
        coordinates[b] = static_cast<const double*>(take()) + margin[a];
        call.count[b] = counts[a];
        call.margin[b] = margin[a];
        call.width[b] = width[a];
        call.wraps[b] = static_cast<int32_t>(wraps[a]);
        for (int side = 0; side < 2; side++)
            call.boundary[b][side] = touches_always[2 * a + side] || touches[2 * a + side];
    }
    int64_t edges_number = *static_cast<const int64_t*>(take());
    {
        std::lock_guard<std::mutex> guard(lock);
        auto found = edges_by_number.find(edges_number);
        if (found != edges_by_number.end()) call.edges = found->second;
    }
    call.fields = fields.data();
    call.results = results.data();
    call.ghosts = ghosts;
    call.coordinates = coordinates;
    call.threads = *integers(given, "threads"), call.l2_bytes = *integers(given, "l2_bytes"),
    call.l3_is_far = *integers(given, "l3_is_far"), call.l3_bytes = *integers(given, "l3_bytes"),
    call.every = *integers(given, "every"), call.records = *integers(given, "records");
    int64_t failed = members ? ensemble.step_all() : advance(&call);
    if (!failed) return nullptr;
    std::string sentence = "the MPI library failed with error code " + std::to_string(failed) +
                           " while edges were exchanged with other processes";
    return failure(frame, sentence.c_str());
}
