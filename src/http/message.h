// What server and client of this room exchange.
#pragma once

#include <string>

namespace kvd::http {

struct Response {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

}  // namespace kvd::http
