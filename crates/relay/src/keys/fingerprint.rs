//! The SHA-256 of certificates. No I/O.

use rustls::pki_types::CertificateDer;

/// Of a certificate.
pub(crate) fn fingerprint_of(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

/// As people and tools write it; `None`: it is not 64 hexadecimal digits.
pub(crate) fn fingerprint(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text.trim_start_matches("sha256:").bytes().filter(|b| *b != b':').collect();
    let mut bytes = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}
