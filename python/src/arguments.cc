#include "arguments.h"

#include <cstring>

namespace kvd::python {
namespace {

PyObject* error_type = nullptr;  // the module's, which holds it for as long as the interpreter lives

// A view of an object's memory, given back when it goes.
class BufferView {
 public:
  BufferView(nb::handle object, int flags) : ok_(PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) {
    if (!ok_) PyErr_Clear();
  }
  ~BufferView() {
    if (ok_) PyBuffer_Release(&view_);
  }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  [[nodiscard]] const Py_buffer* operator->() const noexcept { return &view_; }
  [[nodiscard]] bool ok() const noexcept { return ok_; }

 private:
  Py_buffer view_{};
  bool ok_;
};

// 'Q', 'q', 'L' or 'l' of eight bytes in this machine's order.
bool is_int64(const Py_buffer& view) {
  if (view.itemsize != 8 || view.format == nullptr) return false;
  const char* format = view.format;
  if (*format == '<' || *format == '=' || *format == '@') ++format;
  return format[0] != '\0' && std::strchr("QqLl", format[0]) != nullptr && format[1] == '\0';
}

template <class T>
T number(nb::handle value, const char* what) {
  const std::int64_t wide = [&] {
    try {
      return nb::cast<std::int64_t>(value);
    } catch (const nb::cast_error&) {
      raise_invalid(what);
    }
  }();
  if (wide < 0 || static_cast<std::uint64_t>(wide) > std::numeric_limits<T>::max()) raise_invalid(what);
  return static_cast<T>(wide);
}

template <class T>
T field(const nb::dict& group, const char* name, T fallback, bool required) {
  if (!group.contains(name)) {
    if (required) raise_invalid("a group needs layers, slab_bytes, block_tokens and order");
    return fallback;
  }
  return number<T>(group[name], "a field of a group is not a number in its range");
}

HitRule rule_of(const nb::dict& group) {
  if (!group.contains("rule")) return HitRule::kAll;
  const std::string rule = nb::str(group["rule"]).c_str();
  if (rule == "all") return HitRule::kAll;
  if (rule == "trailing") return HitRule::kTrailing;
  if (rule == "last") return HitRule::kLast;
  raise_invalid("a group's rule is all, trailing or last");
}

}  // namespace

void set_error_type(nb::handle type) { error_type = type.ptr(); }

void raise(const Error& error) {
  std::string text = error.what;
  if (error.sys_errno != 0) text += std::string(": ") + std::strerror(error.sys_errno);
  raise(error.code, text);
}

void raise(Code code, const std::string& text) {
  nb::object exception = nb::handle(error_type)(text);
  exception.attr("code") = nb::str(code_name(code).data());
  PyErr_SetObject(error_type, exception.ptr());
  throw nb::python_error();
}

void raise_invalid(const char* what) { raise(Error{Code::kInvalid, 0, what}); }

std::vector<std::uint64_t> offsets_of(nb::handle values) {
  if (PyObject_CheckBuffer(values.ptr()) != 0) {
    const BufferView view(values, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
    if (!view.ok() || view->ndim != 1 || !is_int64(*view.operator->())) {
      raise_invalid("offsets are a contiguous array of int64 or uint64, or a sequence of ints");
    }
    std::vector<std::uint64_t> out(static_cast<std::size_t>(view->len) / 8);
    if (!out.empty()) std::memcpy(out.data(), view->buf, out.size() * 8);  // negative ones lie outside every region
    return out;
  }
  std::vector<std::uint64_t> out;
  for (const nb::handle value : nb::iter(values)) {
    out.push_back(static_cast<std::uint64_t>(number<std::int64_t>(value, "an offset is not a number")));
  }
  return out;
}

std::vector<std::uint16_t> numbers_of(nb::handle values) {
  std::vector<std::uint16_t> out;
  for (const nb::handle value : nb::iter(values)) {
    out.push_back(number<std::uint16_t>(value, "shards and groups are numbers from 0 to 65535"));
  }
  return out;
}

std::vector<Run> runs_of(nb::handle values) {
  constexpr char kWhat[] = "a run is (offset, stride, count, length)";
  std::vector<Run> out;
  for (const nb::handle value : nb::iter(values)) {
    if (nb::len(value) != 4) raise_invalid(kWhat);
    out.push_back({.offset = static_cast<std::uint64_t>(number<std::int64_t>(value[0], kWhat)),
                   .stride = static_cast<std::uint64_t>(number<std::int64_t>(value[1], kWhat)),
                   .count = number<std::uint32_t>(value[2], kWhat),
                   .length = number<std::uint32_t>(value[3], kWhat)});
  }
  return out;
}

std::vector<GroupSchema> groups_of(nb::handle values) {
  std::vector<GroupSchema> out;
  for (const nb::handle value : nb::iter(values)) {
    if (!nb::isinstance<nb::dict>(value)) raise_invalid("groups are a list of dicts");
    const auto group = nb::cast<nb::dict>(value);
    if (!group.contains("order")) raise_invalid("a group needs layers, slab_bytes, block_tokens and order");
    out.push_back({.group = field<std::uint16_t>(group, "group", 0, false),
                   .layers = field<std::uint16_t>(group, "layers", 0, true),
                   .slab_bytes = field<std::uint32_t>(group, "slab_bytes", 0, true),
                   .parts = field<std::uint16_t>(group, "parts", 2, false),
                   .block_tokens = field<std::uint32_t>(group, "block_tokens", 0, true),
                   .rule = rule_of(group),
                   .hit_blocks = field<std::uint16_t>(group, "hit_blocks", 0, false),
                   .order = nb::str(group["order"]).c_str()});
  }
  return out;
}

AckLevel ack_of(std::string_view name) {
  if (name == "pooled") return AckLevel::kPooled;
  if (name == "written") return AckLevel::kWritten;
  if (name == "synced") return AckLevel::kSynced;
  raise_invalid("ack is pooled, written or synced");
}

Deadline deadline_of(std::int64_t total_ms, std::int64_t progress_ms) {
  constexpr std::int64_t kMax = std::int64_t{1} << 32;  // 49 days
  if (total_ms < 0 || progress_ms < 0 || total_ms > kMax || progress_ms > kMax) {
    raise_invalid("deadlines are milliseconds, 0 = none");
  }
  return {.total = std::chrono::milliseconds(total_ms), .progress = std::chrono::milliseconds(progress_ms)};
}

KeyList keys_of(const nb::bytes& keys, std::int64_t key_bytes, bool native) {
  return {.bytes = std::as_bytes(std::span(keys.c_str(), keys.size())),
          .key_bytes = u16_of(key_bytes, "a key has 1 to 256 bytes"),
          .native = native};
}

std::uint16_t u16_of(std::int64_t value, const char* what) {
  if (value < 0 || value > UINT16_MAX) raise_invalid(what);
  return static_cast<std::uint16_t>(value);
}

std::uint32_t u32_of(std::int64_t value, const char* what) {
  if (value < 0 || value > UINT32_MAX) raise_invalid(what);
  return static_cast<std::uint32_t>(value);
}

}  // namespace kvd::python
