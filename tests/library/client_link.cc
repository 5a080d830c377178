// Links against libkvdepot.so with the public headers only, as a program outside of this tree would.

#include <cstdio>

#include "kvdepot/client.h"

int main() {
  const auto client = kvd::Client::open("gopher://nowhere");
  if (client || kvd::code_name(client.error().code) != "invalid") {
    std::puts("an address of an unknown kind was not refused");
    return 1;
  }
  return 0;
}
