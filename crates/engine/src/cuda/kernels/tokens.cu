// Imagined tokens: one launch passes every sequence through the transformer token by token, and draws each next token itself.
//
// A cluster of sixteen blocks owns up to MOST sequences from the first pass to the last and never waits for another cluster. Block `rank` computes 16
// columns of each product (64 of the expansion) for all of them, and attends for a quarter of them with head rank / 4: nobody else reads or writes
// their keys and values. Every block keeps all residuals and repeats the layer-norms. Results go to the other blocks by st.async: each store counts
// its bytes on a barrier of the receiving block, which knows how many to expect. There is a barrier per exchange, whose phase ends once per layer.
//
// No exchange overwrites what somebody still reads: a block sends its part of the next exchange only after it has used the one before, and whoever
// fills a buffer again has waited for that exchange to end since.
//
// Products: as in decode.cu, a lane takes eight neighbouring columns, of weights and activations alike.

#if __CUDA_ARCH__ >= 900
namespace tokens {

template <u32 MOST> __device__ __forceinline__ void imagine(const Task& t) {
    using P = Plan<MOST>;
    extern __shared__ __align__(128) u8 shared[];
    const u32 base = shared_address(shared), thread = threadIdx.x, lane = thread & 31, warp = __shfl_sync(~0u, thread / 32, 0);
    const u32 group = lane / 4, member = lane & 3;
    const u32 rank = blockIdx.x % BLOCKS, first = blockIdx.x / BLOCKS * t.each, count = min(t.each, t.batch - first);
    // Sequence n belongs to quarter n % 4, where it is pair n / 4.
    const u32 head = rank / 4, quarter = rank % 4, pairs = count > quarter ? (count - quarter + 3) / 4 : 0;
    // Warp w sends to block w.
    const u32 peer = in_block(base, warp);
    const u64 keep = policy_to_keep();
    float *x = (float*)(shared + P::X), *x2 = (float*)(shared + P::X2), *shares = (float*)(shared + P::SHARES), *norms = (float*)(shared + P::NORMS);
    u8 *stage = shared + P::STAGE, *cached = shared + P::CACHED;
    const u32 cache_row = t.room * 128;
    const float factor = 0.125f * 1.44269504f;

    // ---- exchanges ----
    u32 phases = 0;
    auto bytes = [&](int exchange) {
        return exchange == PROJECTED ? pairs * 384 : exchange == ATTENDED ? count * 512 : exchange == EXPANDED ? count * 2048 : exchange == CHOSEN ? count * 128 : count * 1024;
    };
    auto await_copies = [&](int barrier) {
        await_phase(base + 8 * barrier, phases >> barrier & 1);
        phases ^= 1u << barrier;
    };
    auto await_exchange = [&](int exchange) {
        await_copies(exchange);
        if (thread == 0) expect(base + 8 * exchange, bytes(exchange));
    };
    // Rows of `units` times 16 bytes per sequence, from the stage to every block.
    auto send_rows = [&](u32 to, u32 pitch, u32 units, int exchange) {
#pragma unroll
        for (u32 turn = 0; turn < (MOST * units + 31) / 32; turn++) {
            u32 i = turn * 32 + lane;
            if (i < count * units) send(peer + to + i / units * pitch + i % units * 16, *(const uint4*)(stage + i * 16), peer + 8 * exchange);
        }
    };

    // ---- parameters: each is asked for one exchange before it is needed ----
    auto of_layer = [&](u32 layer) { return (size_t)layer * t.parameter_stride; };
    auto rows_at = [&](const u16* weight, u32 row, u32 inputs, u32 column) { return weight + (size_t)(row + group) * inputs + column + member * 8; };
    Rows projected_rows[2], attended_rows[1], expanded_rows[2], contracted_rows[2];
    float2 projected_bias = make_float2(0, 0), expanded_bias = make_float2(0, 0);
    float attended_bias = 0, contracted_bias = 0;
    // The pairs of results that a thread puts together: of query, key and value, of the expansion; one of the others.
    const u32 tile = thread / (8 * MOST), tile_sequence = thread / 8 % MOST, tile_row = thread % 8 * 2;
    const u32 wide_sequence = thread / 32, wide_column = lane * 2, sequence = thread / 16, column = thread % 16;
    auto load_projected = [&](u32 layer) {
        u32 which = warp % 3;
        const u16* weight = which == 0 ? t.query : which == 1 ? t.key : t.value;
        if (warp < 12) load_rows(projected_rows, rows_at(weight + of_layer(layer), rank * 16, WIDTH, warp / 3 * 64), WIDTH, keep);
        const float* bias = tile == 0 ? t.query_bias : tile == 1 ? t.key_bias : t.value_bias;
        projected_bias = load_biases(bias + of_layer(layer) + rank * 16 + tile_row);
    };
    auto load_attended = [&](u32 layer) {
        if (warp < 8) load_rows(attended_rows, rows_at(t.projection + of_layer(layer), rank * 16, WIDTH, warp * 32), WIDTH, keep);
        attended_bias = load_bias(t.projection_bias + of_layer(layer) + rank * 16 + column);
    };
    auto load_expanded = [&](u32 layer) {
        load_rows(expanded_rows, rows_at(t.expand + of_layer(layer), rank * 64 + warp % 4 * 16, WIDTH, warp / 4 * 64), WIDTH, keep);
        expanded_bias = load_biases(t.expand_bias + of_layer(layer) + rank * 64 + wide_column);
    };
    auto load_contracted = [&](u32 layer) {
        load_rows(contracted_rows, rows_at(t.contract + of_layer(layer), rank * 16, HIDDEN, warp * 64), HIDDEN, keep);
        contracted_bias = load_bias(t.contract_bias + of_layer(layer) + rank * 16 + column);
    };
    auto load_norms = [&](u32 layer) {
        if (thread >= WIDTH) return;
        const float* from = thread < 64 ? t.gain1 : thread < 128 ? t.shift1 : thread < 192 ? t.gain2 : t.shift2;
        fetch(norms + thread * 4, from + of_layer(layer) + thread % 64 * 4);
    };

    // ---- keys and values ----
    // Where a pair's begin, in elements.
    auto past_of = [&](u32 layer, u32 pair) { return (size_t)layer * t.cache_stride + (size_t)((first + quarter + 4 * pair) * HEADS + head) * t.capacity * 64; };
    // One thread copies the first `positions` of a layer, or as many as there is room for beside the new one; part `turn` of three.
    auto load_past = [&](u32 layer, u32 positions, u32 turn) {
        u32 held = min(positions, t.room - 1);
        const u64 drop = policy_to_drop();
        if (turn == 0) expect(base + 8 * PAST, pairs * 2 * held * 128);
        for (u32 i = turn * pairs * 2 / 3; i < (turn + 1) * pairs * 2 / 3; i++) {
            const u16* from = (i % 2 ? t.values : t.keys) + past_of(layer, i / 2);
            if (held > 0) copy_ahead(base + P::CACHED + i * cache_row, from, held * 128, base + 8 * PAST, drop);
            if (positions > held) bring_near(from + held * 64, (positions - held) * 128);
        }
    };

    // ---- start ----
    if (thread == 0) {
        for (int i = 0; i < BARRIERS; i++) start_barrier(base + 8 * i);
        for (int i = 0; i < PAST; i++) expect(base + 8 * i, bytes(i));
    }
    // A weight of zero removes a value, unless that is NaN: rows that are not filled yet are zero.
    for (u32 i = thread; i < pairs * 2 * t.room * 8; i += THREADS)
        if (i / 8 % t.room >= t.past) *(uint4*)(cached + i * 16) = make_uint4(0, 0, 0, 0);
    load_norms(0);
    if (thread < 2 * 64) fetch(norms + 4 * WIDTH + thread * 4, (thread < 64 ? t.head_gain : t.head_shift) + thread % 64 * 4);
    load_projected(0);
    if (!t.given && warp < count) {
        for (u32 half = 0; half < 2; half++) ((float4*)(x + warp * WIDTH))[half * 32 + lane] = get4(t.start, (size_t)(first + warp) * WIDTH + half * 128 + lane * 4);
    }
    await_fetches();
    fence_copies();
    __syncthreads();
    await_cluster();
    if (thread == THREADS - 32)
        for (u32 turn = 0; turn < 3; turn++) load_past(0, t.past, turn);

    for (u32 pass = 0; pass < t.passes; pass++) {
        const u32 past = t.past + pass, row = min(past, t.room - 1);

        // ---- the token: given, or drawn from the head's logits ----
        u32 token = 0;
        if (t.given) {
            if (warp < count) token = load_word(t.given + first + warp);
            if (token >= t.entries) {
                if (rank == 0 && lane == 0) report(t.fault, INDEX_OUT_OF_RANGE, t.op, (int)token, (int)(first + warp), (int)t.entries);
                token = 0;
            }
        } else {
            Rows rows[1];
            if (warp < 8) load_rows(rows, rows_at(t.hidden, rank * 16, WIDTH, warp * 32), WIDTH, keep);
            float2 biases = load_biases(t.hidden_bias + rank * 16 + tile_row);
            if (warp < count) normalise(shared + P::NORMED + warp * PITCH, x + warp * WIDTH, norms + 4 * WIDTH, norms + 5 * WIDTH, t.head_epsilon);
            __syncthreads();
            if (warp < 8) put_product<MOST>(shares, warp, rows, shared + P::NORMED + warp * 64 + member * 16, PITCH, count);
            __syncthreads();
            if (tile == 0 && tile_sequence < count) {
                float2 v = joined_pair<MOST, 8, 1>(shares, 0, tile_sequence, tile_row);
                ((u32*)stage)[thread] = narrow_pair(relu(v.x + biases.x), relu(v.y + biases.y));
            }
            __syncthreads();
            send_rows(P::JOINED + rank * 32, PITCH, 2, ATTENDED);
            load_rows(rows, rows_at(t.last, rank * 32 + warp % 2 * 16, WIDTH, warp / 2 * 32), WIDTH, keep);
            // A warp has a sequence, a lane one of the block's 32 entries.
            u32 entry = rank * 32 + lane;
            float bias = load_bias(t.last_bias + entry);
            float noise = -logf(-logf(open_unit(random_bits(draw_of(t.state, t.site + pass), (first + warp) * ENTRIES + entry))));
            await_exchange(ATTENDED);
            put_product<MOST>(shares, warp, rows, shared + P::JOINED + warp / 2 * 64 + member * 16, PITCH, count);
            __syncthreads();
            if (warp < count) {
                float best = -__int_as_float(0x7f800000);
                u32 index = 0x7fffffff;
                take_larger(best, index, joined<MOST, 8, 2>(shares, lane / 16, warp, lane % 16) + bias + noise, entry);
                take_largest(best, index);
                u32 there = in_block(base, lane % BLOCKS);
                if (lane < BLOCKS) send(there + P::CANDIDATES + (warp * BLOCKS + rank) * 8, make_uint2(__float_as_uint(best), index), there + 8 * CHOSEN);
            }
            await_exchange(CHOSEN);
            if (warp < count) {
                uint2 candidate = *(const uint2*)(shared + P::CANDIDATES + (warp * BLOCKS + lane % BLOCKS) * 8);
                float best = __uint_as_float(candidate.x);
                token = candidate.y;
                take_largest(best, token);
                if (token >= ENTRIES) token = 0;
                if (rank == 0 && lane == 0) t.tokens[(size_t)(first + warp) * t.stride + pass] = (int)token;
            }
        }
        if (warp < count) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                u32 i = half * 32 + lane;
                float4 e = ((const float4*)(t.table + (size_t)token * WIDTH))[i], p = ((const float4*)(t.positions + (size_t)pass * WIDTH))[i];
                ((float4*)(x + warp * WIDTH))[i] = make_float4(e.x + p.x, e.y + p.y, e.z + p.z, e.w + p.w);
            }
        }
        __syncwarp();

        for (u32 layer = 0; layer < t.layers; layer++) {
            const u32 next = layer + 1 < t.layers ? layer + 1 : 0;
            // The past of the next layer, behind which the last pass has none.
            auto load_next_past = [&](u32 turn) {
                if (thread == THREADS - 32 && (next > 0 || pass + 1 < t.passes)) load_past(next, next > 0 ? past : past + 1, turn);
            };

            // ---- query, key and value ----
            if (warp < count) normalise(shared + P::NORMED + warp * PITCH, x + warp * WIDTH, norms, norms + WIDTH, t.epsilon);
            __syncthreads();
            if (warp < 12) put_product<MOST>(shares, warp, projected_rows, shared + P::NORMED + warp / 3 * 128 + member * 16, PITCH, count);
            __syncthreads();
            {
                bool active = tile < 3 && tile_sequence < count;
                float2 v = projected_bias;
                if (active) {
                    float2 sum = joined_pair<MOST, 4, 3>(shares, tile, tile_sequence, tile_row);
                    v = make_float2(v.x + sum.x, v.y + sum.y);
                }
                // Four lanes' pairs are 16 bytes.
                uint4 eight;
                eight.x = narrow_pair(v.x, v.y);
                eight.y = __shfl_down_sync(~0u, eight.x, 1);
                eight.z = __shfl_down_sync(~0u, eight.x, 2);
                eight.w = __shfl_down_sync(~0u, eight.x, 3);
                if (active && thread % 4 == 0) {
                    u32 there = in_block(base, head * 4 + tile_sequence % 4), pair = tile_sequence / 4;
                    u32 to = tile == 0 ? P::QUERY + pair * 128 : P::CACHED + (pair * 2 + tile - 1) * cache_row + row * 128;
                    send(there + to + (quarter * 16 + tile_row) * 2, eight, there + 8 * PROJECTED);
                }
            }
            load_attended(layer);

            // ---- attention ----
            if (pairs > 0) {
                // Without pairs no bytes are expected, and phases would end by themselves.
                await_exchange(PROJECTED);
                await_copies(PAST);
            }
            float* blends = (float*)(shared + P::WIDE);
            if (warp / P::PAIR_WARPS < pairs) {
                const u32 pair = warp / P::PAIR_WARPS, strip = warp % P::PAIR_WARPS;
                constexpr int STEP = P::PAIR_WARPS * 16;
                u32 keys_at = base + P::CACHED + pair * 2 * cache_row + strip * 2048, values_at = keys_at + cache_row;
                u32 query[4][2];
#pragma unroll
                for (u32 i = 0; i < 8; i++) query[i / 2][i % 2] = *(const u32*)(shared + P::QUERY + pair * 128 + (i ^ group) * 16 + member * 4);
                Blend blend = {NOTHING, 0.0f, {}};
                attend<3, STEP>(blend, query, keys_at, values_at, (int)(row + 1) - (int)(strip * 16), factor);
                // The positions for which there is no room take the place of the warp's own first two tiles.
                const u32 rest = past - row;
                const size_t at = past_of(layer, pair) + (size_t)row * 64;
                for (u32 start = strip * 16; start < rest; start += 2 * STEP) {
                    __syncwarp();
                    for (u32 i = lane; i < 2 * 128; i += 32) {
                        u32 position = start + i / 128 * STEP + i / 8 % 16, to = (i / 128 * STEP + i / 8 % 16) * 128 + i % 8 * 16;
                        if (position >= rest) continue;
                        fetch(keys_at + to, t.keys + at + position * 64 + i % 8 * 8);
                        fetch(values_at + to, t.values + at + position * 64 + i % 8 * 8);
                    }
                    await_fetches();
                    __syncwarp();
                    attend<2, STEP>(blend, query, keys_at, values_at, (int)(rest - start), factor);
                }
                if (rest > 0) fence_copies();
                put_blend(blends + warp * SHARE, blend);
            }
            if (warp == WARPS - 1) {
                // The new position, for later passes.
                for (u32 i = lane; i < pairs * 16; i += 32) {
                    u32 which = i / 8 % 2;
                    u16* to = (which ? t.values : t.keys) + past_of(layer, i / 16) + (size_t)past * 64 + i % 8 * 8;
                    *(uint4*)to = *(const uint4*)(cached + (i / 16 * 2 + which) * cache_row + row * 128 + i % 8 * 16);
                }
            }
            __syncthreads();
            load_next_past(0);
            if (thread < pairs * 64) {
                const float* share = blends + thread / 64 * P::PAIR_WARPS * SHARE;
                float top = NOTHING, total = 0.0f, sum = 0.0f;
#pragma unroll
                for (u32 i = 0; i < P::PAIR_WARPS; i++) top = fmaxf(top, share[i * SHARE + 64]);
#pragma unroll
                for (u32 i = 0; i < P::PAIR_WARPS; i++) {
                    float part = exp2f((share[i * SHARE + 64] - top) * factor);
                    total += part * share[i * SHARE + 65];
                    sum += part * share[i * SHARE + thread % 64];
                }
                ((u16*)stage)[thread] = narrow(sum / total);
            }
            __syncthreads();
            if (lane < pairs * 8)
                send(peer + P::JOINED + (quarter + lane / 8 * 4) * PITCH + head * 128 + lane % 8 * 16, *(const uint4*)(stage + lane * 16), peer + 8 * ATTENDED);
            load_expanded(layer);
            await_exchange(ATTENDED);

            // ---- projection and residual ----
            if (warp < 8) put_product<MOST>(shares, warp, attended_rows, shared + P::JOINED + warp * 64 + member * 16, PITCH, count);
            load_next_past(1);
            __syncthreads();
            if (sequence < count) ((float*)stage)[thread] = joined<MOST, 8, 1>(shares, 0, sequence, column) + attended_bias + x[sequence * WIDTH + rank * 16 + column];
            __syncthreads();
            send_rows(P::X2 + rank * 64, 4 * WIDTH, 4, BETWEEN);
            load_contracted(layer);
            await_exchange(BETWEEN);

            // ---- expansion ----
            if (warp < count) normalise(shared + P::NORMED + warp * PITCH, x2 + warp * WIDTH, norms + 2 * WIDTH, norms + 3 * WIDTH, t.epsilon);
            __syncthreads();
            load_norms(next);
            put_product<MOST>(shares, warp, expanded_rows, shared + P::NORMED + warp / 4 * 128 + member * 16, PITCH, count);
            load_next_past(2);
            __syncthreads();
            if (wide_sequence < count) {
                float2 v = joined_pair<MOST, 4, 4>(shares, lane / 8, wide_sequence, wide_column % 16);
                ((u32*)stage)[thread] = narrow_pair(gelu(v.x + expanded_bias.x), gelu(v.y + expanded_bias.y));
            }
            __syncthreads();
            send_rows(P::WIDE + rank * 128, WIDE_PITCH, 8, EXPANDED);
            load_projected(next);
            // The next pass copies this layer's new position, at the earliest a layer later.
            if (warp == WARPS - 1) fence_copies();
            await_exchange(EXPANDED);

            // ---- contraction and residual ----
            put_product<MOST>(shares, warp, contracted_rows, shared + P::WIDE + warp * 128 + member * 16, WIDE_PITCH, count);
            await_fetches();
            __syncthreads();
            if (sequence < count) ((float*)stage)[thread] = joined<MOST, 16, 1>(shares, 0, sequence, column) + contracted_bias + x2[sequence * WIDTH + rank * 16 + column];
            __syncthreads();
            send_rows(P::X + rank * 64, 4 * WIDTH, 4, RESULT);
            await_exchange(RESULT);
        }
    }
    if (t.out && rank == 0 && warp < count) {
        for (u32 half = 0; half < 2; half++) ((float4*)(t.out + (size_t)(first + warp) * WIDTH))[half * 32 + lane] = ((const float4*)(x + warp * WIDTH))[half * 32 + lane];
    }
    // No block leaves while another may still send to it.
    await_cluster();
}

} // namespace tokens
#define TOKENS_BODY(MOST, ...) tokens::imagine<MOST>(tokens::Task{__VA_ARGS__});
#else
#define TOKENS_BODY(MOST, ...)
#endif

#define DECODE_TOKENS(MOST) \
    extern "C" __global__ void __launch_bounds__(512, 1) \
    decode_tokens_##MOST(int* tokens, u32 stride, const int* given, View start, float* out, const float* table, u32 entries, const float* positions, \
        u16* keys, u16* values, u32 cache_stride, const u16* query, const u16* key, const u16* value, const u16* projection, const u16* expand, \
        const u16* contract, const float* query_bias, const float* key_bias, const float* value_bias, const float* projection_bias, \
        const float* expand_bias, const float* contract_bias, const float* gain1, const float* shift1, const float* gain2, const float* shift2, \
        u32 parameter_stride, const float* head_gain, const float* head_shift, const u16* hidden, const u16* last, const float* hidden_bias, \
        const float* last_bias, u32 layers, u32 passes, u32 batch, u32 each, u32 capacity, u32 past, u32 room, float epsilon, float head_epsilon, \
        const u32* state, u32 site, int op, int* fault) { \
        TOKENS_BODY(MOST, tokens, stride, given, start, out, table, entries, positions, keys, values, cache_stride, query, key, value, projection, \
            expand, contract, query_bias, key_bias, value_bias, projection_bias, expand_bias, contract_bias, gain1, shift1, gain2, shift2, \
            parameter_stride, head_gain, head_shift, hidden, last, hidden_bias, last_bias, layers, passes, batch, each, capacity, past, room, epsilon, \
            head_epsilon, state, site, op, fault) \
    }

DECODE_TOKENS(8)
DECODE_TOKENS(10)
