// What the passes in tokens.cu, which explains them, are made of.

#if __CUDA_ARCH__ >= 900
namespace tokens {

constexpr u32 WIDTH = 256, HEADS = 4, HIDDEN = 1024, ENTRIES = 512;
constexpr u32 BLOCKS = 16, WARPS = 16, THREADS = 32 * WARPS;
constexpr float NOTHING = -1e30f;

// Exchanges, in their order within a layer; then that of the candidates for the next token, and the copies of keys and values.
enum { PROJECTED, ATTENDED, BETWEEN, EXPANDED, RESULT, CHOSEN, PAST, BARRIERS };

// ---- instructions ----

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Where another block of the cluster has what lies here in this one.
__device__ __forceinline__ u32 in_block(u32 at, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}

// Stores of 16 and 8 bytes in the shared memory of a block, counted on its barrier.
__device__ __forceinline__ void send(u32 at, uint4 v, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier) : "memory");
}

__device__ __forceinline__ void send(u32 at, uint2 v, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(at), "r"(v.x), "r"(v.y), "r"(barrier) : "memory");
}

__device__ __forceinline__ void start_barrier(u32 barrier) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory"); }

// The barrier's phase ends when so many bytes have come.
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void await_phase(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

// All blocks of the cluster are there, with the barriers they have started.
__device__ __forceinline__ void await_cluster() {
    asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Between stores and copies by cp.async.bulk of the same bytes.
__device__ __forceinline__ void fence_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }

__device__ __forceinline__ u64 policy_to_keep() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ u64 policy_to_drop() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void copy_ahead(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

__device__ __forceinline__ void bring_near(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Parameters, which nothing writes while the kernel runs. The order of these loads and of waits is that of the source.
__device__ __forceinline__ uint4 load_weights(const u16* p, u64 policy) {
    uint4 w;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "l"(p), "l"(policy) : "memory");
    return w;
}

__device__ __forceinline__ float load_bias(const float* p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ float2 load_biases(const float* p) {
    float2 v;
    asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
    return v;
}

// ---- the arguments, and where everything lies in shared memory ----

struct Task {
    int* tokens;
    u32 stride;
    const int* given;
    View start;
    float* out;
    const float* table;
    u32 entries;
    const float* positions;
    u16 *keys, *values;
    u32 cache_stride;
    const u16 *query, *key, *value, *projection, *expand, *contract;
    const float *query_bias, *key_bias, *value_bias, *projection_bias, *expand_bias, *contract_bias;
    const float *gain1, *shift1, *gain2, *shift2;
    u32 parameter_stride;
    const float *head_gain, *head_shift;
    const u16 *hidden, *last;
    const float *hidden_bias, *last_bias;
    u32 layers, passes, batch, each, capacity, past, room;
    float epsilon, head_epsilon;
    const u32* state;
    u32 site;
    int op;
    int* fault;
};

// Bytes of an activation row: a row follows the one before it half of the banks later.
constexpr u32 PITCH = 2 * WIDTH + 64, WIDE_PITCH = 2 * HIDDEN + 64;
// Floats from a sequence's 16 results of a warp to the next one's.
constexpr u32 ROOM = 20;
// Floats of a warp's share of attention: 64 sums, the best score, the sum of the weights.
constexpr u32 SHARE = 68;

template <u32 MOST> struct Plan {
    // Sequences whose attention a block computes, with so many warps each; tiles of 8 sequences.
    static constexpr u32 PAIRS = (MOST + 3) / 4, PAIR_WARPS = WARPS / PAIRS, TILES = (MOST + 7) / 8;
    // Floats of a warp's share of a product. Two shares of different rows lie half of the banks apart.
    static constexpr u32 SLOT = TILES * 8 * ROOM + 16;
    // Residuals before attention and between the two halves of a block, f32.
    static constexpr u32 X = 128, X2 = X + MOST * 4 * WIDTH;
    // Activations as the products take them, bf16. `WIDE` also holds the shares of attention.
    static constexpr u32 NORMED = X2 + MOST * 4 * WIDTH, JOINED = NORMED + MOST * PITCH, WIDE = JOINED + MOST * PITCH;
    static constexpr u32 SHARES = WIDE + MOST * WIDE_PITCH, STAGE = SHARES + WARPS * SLOT * 4;
    static constexpr u32 QUERY = STAGE + MOST * 128, CANDIDATES = QUERY + PAIRS * 128;
    // Gain and shift of the layer's two norms and of the head's.
    static constexpr u32 NORMS = CANDIDATES + MOST * BLOCKS * 8;
    // [pair][keys, values][room, 64] bf16
    static constexpr u32 CACHED = (NORMS + 6 * 4 * WIDTH + 127) / 128 * 128;
};

// ---- products ----

struct Rows {
    uint4 upper, lower;
};

// A lane's columns, eight of every 32, of two of a weight's rows.
template <int UNITS> __device__ __forceinline__ void load_rows(Rows (&rows)[UNITS], const u16* at, u32 inputs, u64 policy) {
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        rows[i].upper = load_weights(at + i * 32, policy);
        rows[i].lower = load_weights(at + (size_t)8 * inputs + i * 32, policy);
    }
}

// The warp's share of 16 columns for all sequences; x are its lane's columns of the first one.
template <u32 MOST, int UNITS> __device__ __forceinline__ void put_product(float* shares, u32 slot, const Rows (&rows)[UNITS], const u8* x, u32 pitch, u32 count) {
    u32 group = (threadIdx.x & 31) / 4, member = threadIdx.x & 3;
#pragma unroll
    for (u32 tile = 0; tile < Plan<MOST>::TILES; tile++) {
        if (tile * 8 >= count) break;
        // A sequence that does not exist is another one whose results are thrown away.
        const u8* from = x + min(tile * 8 + group, count - 1) * pitch;
        float even[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            uint4 v = *(const uint4*)(from + i * 64);
            multiply(even, rows[i].upper.x, rows[i].lower.x, rows[i].upper.y, rows[i].lower.y, v.x, v.y);
            multiply(odd, rows[i].upper.z, rows[i].lower.z, rows[i].upper.w, rows[i].lower.w, v.z, v.w);
        }
        float* to = shares + slot * Plan<MOST>::SLOT + (tile * 8 + 2 * member) * ROOM + group;
        to[0] = even[0] + odd[0];
        to[ROOM] = even[1] + odd[1];
        to[8] = even[2] + odd[2];
        to[ROOM + 8] = even[3] + odd[3];
    }
}

// A result from SPLITS shares, STEP slots apart.
template <u32 MOST, u32 SPLITS, u32 STEP> __device__ __forceinline__ float joined(const float* shares, u32 slot, u32 sequence, u32 row) {
    const float* from = shares + slot * Plan<MOST>::SLOT + sequence * ROOM + row;
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < SPLITS; i++) sum += from[i * STEP * Plan<MOST>::SLOT];
    return sum;
}

// Two neighbouring results.
template <u32 MOST, u32 SPLITS, u32 STEP> __device__ __forceinline__ float2 joined_pair(const float* shares, u32 slot, u32 sequence, u32 row) {
    const float* from = shares + slot * Plan<MOST>::SLOT + sequence * ROOM + row;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (u32 i = 0; i < SPLITS; i++) {
        float2 share = *(const float2*)(from + i * STEP * Plan<MOST>::SLOT);
        sum.x += share.x;
        sum.y += share.y;
    }
    return sum;
}

// ---- layer-norm: a warp per row ----

__device__ __forceinline__ void normalise(u8* to, const float* x, const float* gain, const float* shift, float epsilon) {
    u32 lane = threadIdx.x & 31;
    // Measured from one of the row's own elements, no row is so far from zero that its variance is lost in the squares.
    float origin = x[0], sum = 0.0f, squares = 0.0f;
    float4 v[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        v[half] = ((const float4*)x)[half * 32 + lane];
        FOUR(float d = part<e>(v[half]) - origin; sum += d; squares += d * d;)
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        sum += __shfl_xor_sync(~0u, sum, o);
        squares += __shfl_xor_sync(~0u, squares, o);
    }
    float offset = sum * (1.0f / WIDTH), mean = origin + offset;
    float inverse = rsqrtf(fmaxf(squares * (1.0f / WIDTH) - offset * offset, 0.0f) + epsilon);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 i = half * 32 + lane;
        float4 g = ((const float4*)gain)[i], s = ((const float4*)shift)[i];
        FOUR(part<e>(v[half]) = (part<e>(v[half]) - mean) * inverse * part<e>(g) + part<e>(s);)
        *(uint2*)(to + i * 8) = make_uint2(narrow_pair(v[half].x, v[half].y), narrow_pair(v[half].z, v[half].w));
    }
}

// ---- attention of one query: several warps, each with tiles of 16 positions ----

// A row of keys or values is 128 bytes, so units of 16 bytes at the same place of eight rows lie in the same banks. Row r therefore hands in unit
// u ^ (r % 8) where unit u is asked for, and the other operand has eight columns, column n for the positions r with r % 8 == n: its query has the
// units in that order, and the scores are the diagonal of each half of the result; its weights are zero for all other positions, and
// sums[u / 2][u % 2 * 2 ..] are of unit u ^ n.
struct Blend {
    float best, total;
    float sums[4][4];
};

// TILES tiles, STEP rows apart; `valid` rows are there, counted from the first. The warp's result so far is in `blend`.
template <int TILES, int STEP> __device__ __forceinline__ void attend(Blend& blend, const u32 (&query)[4][2], u32 keys_at, u32 values_at, int valid, float factor) {
    if (valid <= 0) return;
    u32 lane = threadIdx.x & 31, group = lane / 4;
    // The lane with the diagonal element of its row.
    bool own = (lane & 3) == group / 2;
    float scores[TILES][2], top = blend.best;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        int left = valid - i * STEP;
        scores[i][0] = scores[i][1] = NOTHING;
        if (left <= 0) continue;
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (u32 step = 0; step < 4; step++) {
            uint4 k = load_tiles(keys_at + (i * STEP + (lane & 15)) * 128 + ((step * 2 + lane / 16) ^ (lane & 7)) * 16);
            multiply(sums, k.x, k.y, k.z, k.w, query[step][0], query[step][1]);
        }
        if (own && (int)group < left) scores[i][0] = group & 1 ? sums[1] : sums[0];
        if (own && (int)group + 8 < left) scores[i][1] = group & 1 ? sums[3] : sums[2];
        top = fmaxf(top, fmaxf(scores[i][0], scores[i][1]));
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    float fade = exp2f((blend.best - top) * factor);
    blend.best = top;
    blend.total *= fade;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) blend.sums[i][j] *= fade;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        if (valid - i * STEP <= 0) continue;
        u32 weights[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float p = exp2f((scores[i][half] - top) * factor);
            blend.total += p;
            weights[half] = group & 1 ? narrow_pair(0.0f, p) : narrow_pair(p, 0.0f);
        }
#pragma unroll
        for (u32 units = 0; units < 4; units++) {
            u32 position = i * STEP + lane / 16 * 8 + (lane & 7), unit = (units * 2 + lane / 8 % 2) ^ (lane & 7);
            uint4 v = load_tiles_transposed(values_at + position * 128 + unit * 16);
            multiply(blend.sums[units], v.x, v.y, v.z, v.w, weights[0], weights[1]);
        }
    }
}

// The warp's share [SHARE]: the eight columns brought together, member m of each group keeping units 2m and 2m + 1.
__device__ __forceinline__ void put_blend(float* share, const Blend& blend) {
    u32 lane = threadIdx.x & 31, group = lane / 4, member = lane & 3;
    float total = blend.total, sums[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sums[2 * i] = blend.sums[i][0] + blend.sums[i][3];
        sums[2 * i + 1] = blend.sums[i][2] + blend.sums[i][1];
    }
#pragma unroll
    for (int bit = 2; bit; bit >>= 1)
#pragma unroll
        for (int unit = 0; unit < 2 * bit; unit++) sums[unit] += __shfl_xor_sync(~0u, sums[unit + 2 * bit], bit);
#pragma unroll
    for (int o = 16; o; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
    share[2 * member * 8 + group] = sums[0];
    share[(2 * member + 1) * 8 + group] = sums[1];
    if (lane == 0) {
        share[64] = blend.best;
        share[65] = total;
    }
}

} // namespace tokens
#endif
