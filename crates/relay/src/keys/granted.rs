//! Certificates that grants name by their SHA-256, whatever has signed them. Used by `security` for the node.
//!
//! Such a certificate is accepted if its SHA-256 is in the list, and no other way: neither its names, dates nor issuer count. Any
//! other certificate is the CA's to judge, as without the list. In both cases the peer proves that it has the certificate's key.

use std::collections::BTreeSet;
use std::sync::Arc;

use aviary_wire::tenant::GRANT_KEY;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::keys::fingerprint::{fingerprint, fingerprint_of};

/// SHA-256 of certificates.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantKeys(Arc<BTreeSet<[u8; 32]>>);

impl GrantKeys {
    /// One on each line, as the node writes them; an error is the number of the first line that is none.
    pub fn parse(text: &str) -> Result<Self, usize> {
        let key = |(number, line)| fingerprint(line).ok_or(number + 1);
        Ok(Self(Arc::new(text.lines().enumerate().map(key).collect::<Result<_, _>>()?)))
    }

    /// As what the node knows the guest; `None`: no grant names the certificate.
    pub fn shown_by(&self, certificate: &CertificateDer<'_>) -> Option<String> {
        let digits = |bytes: &[u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.0.get(&fingerprint_of(certificate)).map(|bytes| format!("{GRANT_KEY}{}", digits(bytes)))
    }

    /// `of_ca`: judges all other certificates.
    pub fn verifier(&self, of_ca: Arc<dyn ClientCertVerifier>) -> Arc<dyn ClientCertVerifier> {
        if self.0.is_empty() { of_ca } else { Arc::new(KeysOrCa { keys: self.clone(), of_ca }) }
    }
}

#[derive(Debug)]
struct KeysOrCa {
    keys: GrantKeys,
    of_ca: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for KeysOrCa {
    /// None: a client that goes by them would show no certificate of its own.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.keys.shown_by(certificate) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => self.of_ca.verify_client_cert(certificate, chain, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_ca.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_ca.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.of_ca.supported_verify_schemes()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.of_ca.client_auth_mandatory()
    }
}

#[cfg(test)]
#[path = "granted_tests.rs"]
mod tests;
