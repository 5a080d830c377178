// Pki: an authority that makes certificates and revocation lists for tests, as PEM files in a directory of its own that
// goes with it. Keys are of P-256, or of Ed25519, whose signatures all have one size. Not for anything else. One
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tls/context.h"

struct evp_pkey_st;
struct x509_st;

namespace kvd::tls {

struct CertificateWish {
  std::string common_name;
  std::string alternative_names{};  // "DNS:localhost,IP:127.0.0.1"; empty = none
  long valid_from_s = -3600;        // relative to now
  long valid_until_s = 3600;
};

class Pki {
 public:
  enum class Keys : std::uint8_t { kP256, kEd25519 };

  explicit Pki(const std::string& name = "test authority", Keys keys = Keys::kP256);
  // An authority that `above`, which outlives it, has made one: its certificates come with its own behind them.
  Pki(const std::string& name, Pki& above, long valid_until_s = 3600);
  ~Pki();
  Pki(const Pki&) = delete;
  Pki& operator=(const Pki&) = delete;

  struct Files {
    std::string certificate, key;
    long serial = 0;
  };
  // A new certificate and its key, in new files.
  Files issue(const CertificateWish& wish);
  // The authority's own certificate, and its number among those of the one above.
  [[nodiscard]] std::string ca() const { return path("ca.pem"); }
  [[nodiscard]] long serial() const noexcept { return serial_; }
  // Writes the list of certificates that were taken back, valid until so many seconds from now, and returns its path:
  // always the same one.
  std::string write_crl(const std::vector<long>& serials, long valid_until_s = 3600);
  [[nodiscard]] std::string path(const std::string& file) const { return (directory_ / file).string(); }

  // A depot for "localhost" and 127.0.0.1, with or without certificates of clients, and a client of it.
  [[nodiscard]] ServerFiles server_files(bool knows_clients);
  [[nodiscard]] ClientFiles client_files(const Files& own) const;

 private:
  Pki(const std::string& name, Keys keys, Pki* above, long valid_until_s);
  void write_certificate(const std::string& file, x509_st* certificate, bool behind = false) const;

  const Keys keys_;
  Pki* const above_;  // null: it is a root
  const long serial_;
  std::filesystem::path directory_;
  evp_pkey_st* key_ = nullptr;
  x509_st* certificate_ = nullptr;
  long next_serial_ = 100;
};

}  // namespace kvd::tls
