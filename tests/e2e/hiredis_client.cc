// A Redis client on hiredis, for resp_test.py: stores and reads values of many sizes, one by one and in a pipeline of
// which the answers are read later. Prints a line and ends with 0 when every answer was right.
//
//   kvd_hiredis_client HOST PORT
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <hiredis/hiredis.h>

namespace {

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "hiredis client: %s\n", what.c_str());
  std::exit(1);
}

std::string value_of(std::size_t bytes, unsigned seed) {
  std::string value(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525U + 1013904223U;
    value[i] = static_cast<char>(seed >> 24U);
  }
  return value;
}

void append(redisContext* context, const std::vector<std::string>& words) {
  std::vector<const char*> texts;
  std::vector<std::size_t> lengths;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    lengths.push_back(word.size());
  }
  if (redisAppendCommandArgv(context, static_cast<int>(words.size()), texts.data(), lengths.data()) != REDIS_OK)
    fail("a command could not be written");
}

Reply next(redisContext* context) {
  void* reply = nullptr;
  if (redisGetReply(context, &reply) != REDIS_OK) fail(context->errstr);
  return Reply(static_cast<redisReply*>(reply));
}

void expect_ok(const Reply& reply) {
  if (reply->type != REDIS_REPLY_STATUS || std::strcmp(reply->str, "OK") != 0) fail("an answer other than OK");
}

void expect_text(const Reply& reply, const std::string& text) {
  if (reply->type != REDIS_REPLY_STRING || std::string(reply->str, reply->len) != text)
    fail("a value of " + std::to_string(text.size()) + " bytes came back otherwise");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) fail("HOST PORT are missing");
  redisContext* const context = redisConnect(argv[1], std::atoi(argv[2]));
  if (context == nullptr || context->err != 0) fail("cannot connect");
  const std::vector<std::size_t> sizes{0, 1, 4000, 4096, 65536, 1'000'000, 8U << 20U};
  for (unsigned i = 0; i < sizes.size(); ++i) {
    const std::string key = "one " + std::to_string(i), value = value_of(sizes[i], i);
    append(context, {"SET", key, value});
    expect_ok(next(context));
    append(context, {"GET", key});
    expect_text(next(context), value);
  }
  constexpr unsigned kPipelined = 200;
  for (unsigned i = 0; i < kPipelined; ++i) {
    append(context, {"SET", "many " + std::to_string(i), value_of(i * 100, i)});
    append(context, {"GET", "many " + std::to_string(i)});
  }
  for (unsigned i = 0; i < kPipelined; ++i) {
    expect_ok(next(context));
    expect_text(next(context), value_of(i * 100, i));
  }
  append(context, {"GET", "none"});
  if (next(context)->type != REDIS_REPLY_NIL) fail("a value where there is none");
  append(context, {"DEL", "one 1", "none"});
  if (const Reply reply = next(context); reply->type != REDIS_REPLY_INTEGER || reply->integer != 1) fail("DEL");
  redisFree(context);
  std::puts("all answers were right");
  return 0;
}
