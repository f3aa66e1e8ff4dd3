// A plain paged attention in C++, checked by test vectors without Python.
//
//     pagedref vectors write DIR
//     g++ -std=c++17 -O2 check_vectors.cpp -o check_vectors && ./check_vectors DIR
#include <cmath>
#include <iostream>

#include "vectors.hpp"

// The tolerance is written in the expected value: a bound for each element.
bool fits(const Numbers& found, const Tensors& file, const Json& expected) {
    Numbers value = file(expected["values"].items[0]), bound = file(expected["bound"]);
    bool good = found.size() == value.size();
    for (size_t i = 0; good && i < found.size(); i++)
        good = found[i] == value[i] || std::fabs(found[i] - value[i]) <= bound[i];
    return good;
}

bool attention(const Tensors& file, const Json& vector) {
    const Json& a = vector["arguments"];
    Numbers q = file(a["q"]), k = file(a["k_cache"]), v = file(a["v_cache"]), rows = file(a["qo_indptr"]),
            start = file(a["kv_indptr"]), frames = file(a["kv_indices"]), last = file(a["kv_last_page_len"]),
            mask = file(a["mask"]), slopes = file(a["alibi_slopes"]), sinks = file(a["sinks"]), out, lse;
    size_t heads = file.dim(a["q"], 1), dim = file.dim(a["q"], 2), page_size = file.dim(a["k_cache"], 1),
           kv_heads = file.dim(a["k_cache"], 2), v_dim = file.dim(a["v_cache"], 3), in_mask = 0;
    double scale = a["sm_scale"].none ? 1 / std::sqrt(double(dim)) : a["sm_scale"].number;
    double cap = a["softcap"].number, chunk = a["attention_chunk"].number;
    const auto& window = a["window"].items;
    bool causal = a["causal"].none ? mask.empty() : a["causal"].number != 0;
    for (size_t b = 0; b + 1 < start.size(); b++) {
        int first = rows.empty() ? int(b) : int(rows[b]), end = rows.empty() ? int(b) + 1 : int(rows[b + 1]);
        int pages = int(start[b + 1] - start[b]), n = pages ? (pages - 1) * int(page_size) + int(last[b]) : 0;
        for (int row = first; row < end; row++, in_mask += mask.empty() ? 0 : n)
            for (size_t h = 0; h < heads; h++) {
                int position = n - (end - first) + row - first;
                double sink = sinks.empty() ? -INFINITY : sinks[h], top = sink, sum = 0;
                Numbers score(n, -INFINITY), mean(v_dim, 0);
                auto slot = [&](int j) {  // page table, then offset, then kv head
                    size_t frame = size_t(frames[size_t(start[b]) + size_t(j) / page_size]);
                    return (frame * page_size + size_t(j) % page_size) * kv_heads + h / (heads / kv_heads);
                };
                for (int j = 0; j < n; j++) {
                    int d = j - position;
                    bool seen = !(causal && d > 0) && (mask.empty() || mask[in_mask + size_t(j)] != 0);
                    if (chunk != 0) seen = seen && std::floor(j / chunk) == std::floor(position / chunk);
                    if (!window.empty() && !window[0].none) seen = seen && d >= -window[0].number;
                    if (!window.empty() && !window[1].none) seen = seen && d <= window[1].number;
                    if (!seen) continue;  // whatever it holds
                    score[j] = 0;
                    for (size_t c = 0; c < dim; c++)
                        score[j] += q[(size_t(row) * heads + h) * dim + c] * k[slot(j) * dim + c];
                    score[j] *= scale;
                    if (cap != 0) score[j] = cap * std::tanh(score[j] / cap);
                    if (!slopes.empty()) score[j] += slopes[h] * d;
                    top = std::max(top, score[j]);
                }
                if (sink > -INFINITY) sum = std::exp(sink - top);
                for (int j = 0; j < n; j++) {
                    if (score[j] == -INFINITY) continue;
                    double weight = std::exp(score[j] - top);
                    sum += weight;
                    for (size_t c = 0; c < v_dim; c++) mean[c] += weight * v[slot(j) * v_dim + c];
                }
                for (double x : mean) out.push_back(sum > 0 ? x / sum : 0);
                lse.push_back(sum > 0 ? top + std::log(sum) : -INFINITY);
            }
    }
    return fits(out, file, vector["expected"]["out"]) && fits(lse, file, vector["expected"]["lse"]);
}

int main(int count, char** arguments) {
    if (count != 2) return std::cerr << "usage: check_vectors DIR\n", 2;
    std::string folder = arguments[1], text = slurp(folder + "/manifest.json");
    size_t at = 0;
    int agree = 0, fail = 0, others = 0;
    Json manifest = parse(text, at);
    for (const Json& group : manifest["groups"].items)
        for (const Json& vector : group["vectors"].items) {
            Tensors file(folder + "/" + vector["file"].text);
            bool ours = vector["operation"].text.rfind("paged_", 0) == 0 && vector["outcome"].text == "values" &&
                        vector["arguments"]["kv_format"].none && file.header["q"]["dtype"].text == "F32";
            if (!ours) others++;
            else if (attention(file, vector)) agree++;
            else fail++, std::cout << "FAILS " << vector["name"].text << ": " << group["fault"].text << "\n";
        }
    std::cout << agree << " agree, " << fail << " fail, " << others << " concern other operations and types\n";
    return fail != 0;
}
