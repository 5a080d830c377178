#include "tls/testing/certificates.h"

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "base/check.h"

namespace kvd::tls {
namespace {

std::filesystem::path make_directory() {
  std::string name = (std::filesystem::temp_directory_path() / "kvd-pki-XXXXXX").string();
  KVD_CHECK(::mkdtemp(name.data()) != nullptr);
  return name;
}

EVP_PKEY* make_key(Pki::Keys keys) {
  EVP_PKEY* const key = keys == Pki::Keys::kP256 ? EVP_EC_gen("P-256") : EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  KVD_CHECK(key != nullptr);
  return key;
}

// Ed25519 hashes by itself.
const EVP_MD* digest_for(const EVP_PKEY* key) { return EVP_PKEY_is_a(key, "ED25519") == 1 ? nullptr : EVP_sha256(); }

void set_name(X509* certificate, const std::string& name) {
  X509_NAME* const subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                             0);
}

void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  KVD_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

X509* make_certificate(EVP_PKEY* key, long serial, const CertificateWish& wish) {
  X509* const certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), wish.valid_from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate), wish.valid_until_s);
  X509_set_pubkey(certificate, key);
  set_name(certificate, wish.common_name);
  return certificate;
}

}  // namespace

Pki::Pki(const std::string& name, Keys keys) : Pki(name, keys, nullptr, 3600) {}
Pki::Pki(const std::string& name, Pki& above, long valid_until_s) : Pki(name, above.keys_, &above, valid_until_s) {}

Pki::Pki(const std::string& name, Keys keys, Pki* above, long valid_until_s)
    : keys_(keys),
      above_(above),
      serial_(above == nullptr ? 1 : above->next_serial_++),
      directory_(make_directory()),
      key_(make_key(keys)) {
  certificate_ = make_certificate(key_, serial_, {.common_name = name, .valid_until_s = valid_until_s});
  X509* const issuer = above == nullptr ? certificate_ : above->certificate_;
  X509_set_issuer_name(certificate_, X509_get_subject_name(issuer));
  add_extension(certificate_, issuer, NID_basic_constraints, "critical,CA:TRUE");
  add_extension(certificate_, issuer, NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(certificate_, certificate_, NID_subject_key_identifier, "hash");
  EVP_PKEY* const signer = above == nullptr ? key_ : above->key_;
  KVD_CHECK(X509_sign(certificate_, signer, digest_for(signer)) > 0);
  write_certificate(ca(), certificate_);
}

Pki::~Pki() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void Pki::write_certificate(const std::string& file, X509* certificate, bool behind) const {
  std::FILE* const out = std::fopen(file.c_str(), behind ? "a" : "w");
  KVD_CHECK(out != nullptr && PEM_write_X509(out, certificate) == 1);
  std::fclose(out);
}

Pki::Files Pki::issue(const CertificateWish& wish) {
  const long serial = next_serial_++;
  Files files{.certificate = path(std::to_string(serial) + ".pem"),
              .key = path(std::to_string(serial) + ".key"),
              .serial = serial};
  EVP_PKEY* const key = make_key(keys_);
  X509* const certificate = make_certificate(key, serial, wish);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate_));
  add_extension(certificate, certificate_, NID_authority_key_identifier, "keyid");
  if (!wish.alternative_names.empty()) {
    add_extension(certificate, certificate_, NID_subject_alt_name, wish.alternative_names);
  }
  KVD_CHECK(X509_sign(certificate, key_, digest_for(key_)) > 0);
  write_certificate(files.certificate, certificate);
  if (above_ != nullptr) write_certificate(files.certificate, certificate_, true);
  std::FILE* const out = std::fopen(files.key.c_str(), "w");
  KVD_CHECK(out != nullptr && PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  std::fclose(out);
  KVD_CHECK(::chmod(files.key.c_str(), S_IRUSR | S_IWUSR) == 0);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return files;
}

std::string Pki::write_crl(const std::vector<long>& serials, long valid_until_s) {
  X509_CRL* const crl = X509_CRL_new();
  X509_CRL_set_version(crl, X509_CRL_VERSION_2);
  X509_CRL_set_issuer_name(crl, X509_get_subject_name(certificate_));
  ASN1_TIME* const at = ASN1_TIME_set(nullptr, std::time(nullptr) - 7200);
  X509_CRL_set1_lastUpdate(crl, at);
  for (const long serial : serials) {
    X509_REVOKED* const revoked = X509_REVOKED_new();
    ASN1_INTEGER* const number = ASN1_INTEGER_new();
    ASN1_INTEGER_set(number, serial);
    X509_REVOKED_set_serialNumber(revoked, number);
    X509_REVOKED_set_revocationDate(revoked, at);
    X509_CRL_add0_revoked(crl, revoked);
    ASN1_INTEGER_free(number);
  }
  ASN1_TIME_set(at, std::time(nullptr) + valid_until_s);
  X509_CRL_set1_nextUpdate(crl, at);
  ASN1_TIME_free(at);
  KVD_CHECK(X509_CRL_sort(crl) == 1 && X509_CRL_sign(crl, key_, digest_for(key_)) > 0);
  const std::string file = path("crl.pem");
  std::FILE* const out = std::fopen(file.c_str(), "w");
  KVD_CHECK(out != nullptr && PEM_write_X509_CRL(out, crl) == 1);
  std::fclose(out);
  X509_CRL_free(crl);
  return file;
}

ServerFiles Pki::server_files(bool knows_clients) {
  const Files own = issue({.common_name = "depot", .alternative_names = "DNS:localhost,IP:127.0.0.1"});
  return {.certificate = own.certificate, .key = own.key, .client_ca = knows_clients ? ca() : "", .crl = ""};
}

ClientFiles Pki::client_files(const Files& own) const {
  return {.ca = ca(), .certificate = own.certificate, .key = own.key};
}

}  // namespace kvd::tls
