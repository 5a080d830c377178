#include "tls/peer_certificate.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <string_view>

#include <openssl/evp.h>
#include <openssl/x509v3.h>

namespace kvd::tls {
namespace {

constexpr std::size_t kNamesMax = 32;
constexpr std::size_t kNameBytesMax = 255;

// A name with a byte that is no character, as a zero in its middle, could pass for another one.
void add_name(const ASN1_STRING* text, std::vector<std::string>& names) {
  const std::string_view name(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                              static_cast<std::size_t>(ASN1_STRING_length(text)));
  const bool printable = std::ranges::all_of(name, [](char c) { return c > ' ' && c <= '~'; });
  if (name.empty() || name.size() > kNameBytesMax || !printable || names.size() == kNamesMax) return;
  names.emplace_back(name);
}

void add_alternative_names(const X509* certificate, std::vector<std::string>& names) {
  auto* const all = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(all); ++i) {
    int kind = 0;
    const void* const value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(all, i), &kind);
    if (kind == GEN_DNS || kind == GEN_URI || kind == GEN_EMAIL)
      add_name(static_cast<const ASN1_STRING*>(value), names);
  }
  GENERAL_NAMES_free(all);
}

void add_common_name(const X509* certificate, std::vector<std::string>& names) {
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) add_name(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)), names);
}

}  // namespace

io::PeerCertificate read_certificate(X509* certificate) {
  io::PeerCertificate out;
  // Authorities check alternative names; where there are some, the common name may be anything.
  if (X509_get_ext_by_NID(certificate, NID_subject_alt_name, -1) >= 0) {
    add_alternative_names(certificate, out.names);
  } else {
    add_common_name(certificate, out.names);
  }
  unsigned int bytes = 0;
  X509_digest(certificate, EVP_sha256(), reinterpret_cast<unsigned char*>(out.sha256.data()), &bytes);
  std::tm at{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &at) == 1) out.not_after = ::timegm(&at);
  return out;
}

}  // namespace kvd::tls
