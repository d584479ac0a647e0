//! Authentication of both ends of a connection: certificates and tokens, and what their errors mean. Used by `gateway` and
//! `handover` for the node, by `relay` for the guest's side. A peer without a valid certificate or token gets no session.

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use aviary_transport::RemoteAddress;
use aviary_wire::tenant::GRANT_KEY;
use rustls::client::UnbufferedClientConnection;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::UnbufferedServerConnection;
use rustls::server::WebPkiClientVerifier;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::keys::fingerprint::{fingerprint, fingerprint_of};
use crate::keys::granted::GrantKeys;
use crate::tls::handshake::{Secured, as_client, as_server};

/// A tenant's certificate carries its name as a host of this domain, which no node has.
pub(crate) const TENANT_DOMAIN: &str = ".tenant.aviary";

/// Keys or certificates cannot be used.
#[derive(Debug, Error, displaydoc::Display)]
pub enum SecurityError {
    /// cannot read {0}: {1}; `aviary tls init` writes this file
    File(PathBuf, String),
    /// cannot use {0}: {1}
    Unusable(PathBuf, rustls::Error),
    /// --tls-pin `{0}`: expected a SHA-256 fingerprint of 64 hexadecimal digits
    Pin(String),
    /// {0}:{1}: expected the SHA-256 of a certificate, 64 hexadecimal digits; `aviary tls revoke` writes it
    Revoked(PathBuf, usize),
    /// {0}:{1}: expected the SHA-256 of a certificate, 64 hexadecimal digits; the node writes this file
    Key(PathBuf, usize),
    /// the node cannot be authenticated: give --tls-dir with its ca.pem, or --tls-pin
    NoNode,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let failed = |error: &dyn std::fmt::Display| SecurityError::File(path.into(), error.to_string());
    let list = CertificateDer::pem_file_iter(path).map_err(|e| failed(&e))?;
    let list: Result<Vec<_>, _> = list.collect();
    let list = list.map_err(|e| failed(&e))?;
    if list.is_empty() { Err(failed(&"it contains no certificate")) } else { Ok(list) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, SecurityError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| SecurityError::File(path.into(), error.to_string()))
}

fn roots(path: &Path) -> Result<RootCertStore, SecurityError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| SecurityError::Unusable(path.into(), error))?;
    }
    Ok(roots)
}

fn text(path: &Path) -> Result<String, SecurityError> {
    std::fs::read_to_string(path).map_err(|error| SecurityError::File(path.into(), error.to_string()))
}

/// A node's means to authenticate tenants.
pub struct NodeSecurity {
    tls: Option<Arc<ServerConfig>>,
    /// Pairs of tenant and token.
    tokens: Vec<(String, String)>,
    /// Fingerprints (SHA-256) of revoked certificates.
    revoked: Vec<[u8; 32]>,
    /// Certificates that grants name.
    granted: GrantKeys,
}

/// The identity of a guest, or the reason why it has none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    Tenant(String),
    Revoked,
    Unknown,
}

impl NodeSecurity {
    /// Without TLS: no protection at all.
    pub fn plain() -> Self {
        NodeSecurity { tls: None, tokens: Vec::new(), revoked: Vec::new(), granted: GrantKeys::default() }
    }

    /// Reads a folder with `node.pem`, `node.key` and `ca.pem`; optional: `tokens` (per line: tenant and token) and `revoked`
    /// (per line: a certificate's fingerprint and its tenant). `granted`: the file with the certificates that grants name.
    pub fn load(folder: &Path, granted: Option<&Path>) -> Result<Self, SecurityError> {
        let path = folder.join("tokens");
        let list = if path.exists() { text(&path)? } else { String::new() };
        let pair = |line: &str| line.split_once(' ').map(|(name, token)| (name.to_owned(), token.trim().to_owned()));
        let tokens: Vec<_> = list
            .lines()
            .filter_map(pair)
            .filter(|(name, token)| !token.is_empty() && !name.starts_with(GRANT_KEY))
            .collect();
        let revoked = revoked(&folder.join(REVOKED))?;
        let granted = granted_keys(granted)?;
        let chain = folder.join("node.pem");
        let unusable = |error| SecurityError::Unusable(chain.clone(), error);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(&folder.join("ca.pem"))?.into(), provider());
        let verifier = if tokens.is_empty() { verifier } else { verifier.allow_unauthenticated() };
        let verifier = verifier.build().map_err(|e| SecurityError::File(folder.join("ca.pem"), e.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(granted.verifier(verifier))
            .with_single_cert(certificates(&chain)?, key(&folder.join("node.key"))?)
            .map_err(unusable)?;
        // Each connection has its own process, so no TLS session could be resumed.
        config.send_tls13_tickets = 0;
        config.enable_secret_extraction = true;
        Ok(NodeSecurity { tls: Some(config.into()), tokens, revoked, granted })
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    pub(crate) fn shake_hands(&self, socket: &mut TcpStream, deadline: Instant) -> io::Result<Option<Secured>> {
        let Some(config) = &self.tls else { return Ok(None) };
        let connection = UnbufferedServerConnection::new(config.clone()).map_err(io::Error::other)?;
        as_server(connection, socket, deadline).map(Some)
    }

    /// The identity in the peer's certificate. `None`: the peer showed no certificate.
    pub(crate) fn by_certificate(&self, tls: Option<&Secured>) -> Option<Identity> {
        let certificate = tls?.certificate.as_ref()?;
        Some(self.named_by(certificate))
    }

    pub(crate) fn named_by(&self, certificate: &CertificateDer<'_>) -> Identity {
        if self.revoked.contains(&fingerprint_of(certificate)) {
            return Identity::Revoked;
        }
        let named = self.granted.shown_by(certificate).or_else(|| tenant_of(certificate));
        named.map_or(Identity::Unknown, Identity::Tenant)
    }

    /// The identity of a peer. If it showed a certificate, its token is ignored: a stolen token neither turns the holder of a
    /// certificate into another tenant nor helps a revoked certificate.
    pub(crate) fn identify(&self, certified: Option<Identity>, token: &[u8]) -> Identity {
        certified.unwrap_or_else(|| self.by_token(token))
    }

    /// Compares with all of every token, so that the time reveals nothing.
    fn by_token(&self, token: &[u8]) -> Identity {
        let mut found = Identity::Unknown;
        for (name, known) in &self.tokens {
            if bool::from(known.as_bytes().ct_eq(token)) {
                found = Identity::Tenant(name.clone());
            }
        }
        found
    }
}

/// A relay's means to authenticate the node, and its own credentials.
pub struct ClientSecurity {
    tls: Option<Arc<ClientConfig>>,
    pub(crate) token: Vec<u8>,
}

impl ClientSecurity {
    pub fn plain() -> Self {
        ClientSecurity { tls: None, token: Vec::new() }
    }

    /// `folder`: has `ca.pem`, and either `tenant.pem` with `tenant.key` or `token`. `pin`: SHA-256 of the node's certificate
    /// instead of a CA. `token`: a file, instead of a certificate.
    pub fn load(folder: Option<&Path>, pin: Option<&str>, token: Option<&Path>) -> Result<Self, SecurityError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| SecurityError::Unusable("TLS 1.3".into(), e))?;
        let builder = match (pin, folder) {
            (Some(pin), _) => {
                let verifier = Pinned {
                    fingerprint: fingerprint(pin).ok_or_else(|| SecurityError::Pin(pin.to_owned()))?,
                    provider: provider(),
                };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            (None, Some(folder)) => builder.with_root_certificates(roots(&folder.join("ca.pem"))?),
            (None, None) => return Err(SecurityError::NoNode),
        };
        let chain = folder.map(|folder| folder.join("tenant.pem")).filter(|path| path.exists() && token.is_none());
        let default_token = folder.map(|folder| folder.join("token")).filter(|path| path.exists() && chain.is_none());
        let token = match token.or(default_token.as_deref()) {
            Some(path) => text(path)?.trim().as_bytes().to_vec(),
            None => Vec::new(),
        };
        let mut config = match (chain, folder) {
            (Some(chain), Some(folder)) => builder
                .with_client_auth_cert(certificates(&chain)?, key(&folder.join("tenant.key"))?)
                .map_err(|e| SecurityError::Unusable(chain, e))?,
            _ => builder.with_no_client_auth(),
        };
        config.enable_secret_extraction = true;
        Ok(ClientSecurity { tls: Some(config.into()), token })
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    pub(crate) fn shake_hands(
        &self,
        node: &RemoteAddress,
        socket: &mut TcpStream,
        deadline: Instant,
    ) -> io::Result<Option<Secured>> {
        let Some(config) = &self.tls else { return Ok(None) };
        let name = match node {
            RemoteAddress::Tcp { host, .. } => host.clone(),
            RemoteAddress::Vsock { .. } => "localhost".to_owned(),
        };
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let connection = UnbufferedClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        as_client(connection, socket, deadline).map(Some)
    }
}

/// The file with revoked certificates, in the node's folder.
pub(crate) const REVOKED: &str = "revoked";

fn revoked(path: &Path) -> Result<Vec<[u8; 32]>, SecurityError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let list = text(path)?;
    let lines = list.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let entry = |(number, line): (usize, &str)| {
        let first = line.split_whitespace().next().unwrap_or_default();
        fingerprint(first).ok_or_else(|| SecurityError::Revoked(path.into(), number + 1))
    };
    lines.map(entry).collect()
}

/// A file that is not there has none.
fn granted_keys(path: Option<&Path>) -> Result<GrantKeys, SecurityError> {
    let Some(path) = path.filter(|path| path.exists()) else { return Ok(GrantKeys::default()) };
    GrantKeys::parse(&text(path)?).map_err(|line| SecurityError::Key(path.into(), line))
}

/// The tenant in a certificate; `None`: it is not a tenant's.
pub(crate) fn tenant_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate.valid_dns_names().find_map(|name| name.strip_suffix(TENANT_DOMAIN)).map(str::to_owned)
}

/// Accepts exactly one certificate, whatever CA signed it.
#[derive(Debug)]
struct Pinned {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if bool::from(fingerprint_of(certificate).ct_eq(&self.fingerprint)) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The meaning of a TLS error and its remedy, for the user of a relay. The text follows "cannot use node NAME: ".
pub(crate) fn explain(error: &io::Error, node: &RemoteAddress) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(inner) = inner else { return error.to_string() };
    match inner {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate was not issued by the CA in ca.pem; use the tenant folder that `aviary tls init` wrote for this node".into()
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("its certificate is not for {node}; make one with `aviary tls init --name HOST`, or use --tls-pin"),
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired; renew it with `aviary tls init` on the node".into()
        }
        rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
            "its certificate has another fingerprint than --tls-pin; the address may belong to somebody else".into()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "it refuses our certificate, which has expired; make a new one with `aviary tls init`".into()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it requires a tenant's certificate; give --tls-dir with tenant.pem and tenant.key, or --token-file".into()
        }
        rustls::Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "it refuses our certificate, which was issued by another CA; use the tenant folder that `aviary tls init` wrote for this node".into()
        }
        rustls::Error::AlertReceived(alert) => format!("it refuses our credentials ({alert:?})"),
        rustls::Error::InvalidMessage(_) => {
            "it does not speak TLS; if the node was started with --plain-loopback, use that option here, too".into()
        }
        other => other.to_string(),
    }
}
