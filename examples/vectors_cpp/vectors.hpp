// A reader of test vectors (`pagedref vectors write DIR`): JSON and safetensors, nothing but the standard library.
#pragma once
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>
using Numbers = std::vector<double>;
struct Json {
    bool none = true;   // null, or not there
    double number = 0;  // 1 for true
    std::string text = "";
    std::vector<Json> items = {};
    std::map<std::string, Json> fields = {};
    const Json& operator[](const std::string& key) const { return fields.count(key) ? fields.at(key) : nothing(); }
    static const Json& nothing() { static const Json none; return none; }
};

inline Json parse(const std::string& s, size_t& i) {
    auto more = [&](char end) { while (std::strchr(" \n,:", s[i])) i++; return s[i] != end; };
    Json j{false};
    more(0);
    const char kind = s[i++];
    if (kind == '{') for (; more('}');) { std::string key = parse(s, i).text; j.fields[key] = parse(s, i); }
    else if (kind == '[') while (more(']')) j.items.push_back(parse(s, i));
    else if (kind == '"') while (s[i] != '"') j.text += s[i++];  // the manifest has no escapes
    else {
        for (i--; !std::strchr(" \n,]}", s[i]);) j.text += s[i++];
        j.none = j.text == "null", j.number = j.text == "true" ? 1 : std::atof(j.text.c_str()), i--;
    }
    return i++, j;
}
inline std::string slurp(const std::string& path) {
    std::stringstream all;
    return all << std::ifstream(path, std::ios::binary).rdbuf(), all.str();
}
template <typename T> double read(const char* bytes) { T x; std::memcpy(&x, bytes, sizeof(T)); return double(x); }

struct Tensors {  // a safetensors file: size of the header, header, bytes
    std::string bytes;
    size_t start = 8, at = 0;
    Json header;
    explicit Tensors(const std::string& path) : bytes(slurp(path)), start(8 + size_t(read<uint64_t>(bytes.data()))),
        header(parse(bytes.substr(8, start - 8), at)) {}
    size_t dim(const Json& a, int axis) const { return size_t(header[a["tensor"].text]["shape"].items[axis].number); }
    Numbers operator()(const Json& argument) const {  // empty where there is none
        static const std::map<std::string, std::pair<size_t, double (*)(const char*)>> types = {
            {"F64", {8, read<double>}}, {"F32", {4, read<float>}}, {"BOOL", {1, read<bool>}},
            {"I64", {8, read<int64_t>}}, {"I32", {4, read<int32_t>}}, {"I8", {1, read<int8_t>}}};
        const Json& tensor = header[argument["tensor"].text];
        Numbers out;
        if (tensor.none) return out;
        auto [size, number] = types.at(tensor["dtype"].text);
        const auto& span = tensor["data_offsets"].items;
        for (size_t i = size_t(span[0].number); i < span[1].number; i += size) out.push_back(number(&bytes[start + i]));
        return out;
    }
};
