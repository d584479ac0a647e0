//! The index of the certificates that a CA has issued to tenants. With it, `aviary tls revoke` can revoke certificates whose
//! files are lost.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::keys::fingerprint::fingerprint_of;
use crate::keys::folder::{
    IdentityError, IndexError, append_private, node_folder, revoked_fingerprints, token_holders,
};
use crate::keys::security::{certificates, tenant_of};

/// The index's file name, in the folder that `aviary tls init` writes.
const INDEX: &str = "issued";
const HEADING: &str = "# tenant, SHA-256 of the certificate, serial number, valid from, valid until\n";

/// A certificate that was issued to a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub tenant: String,
    /// SHA-256, 64 hexadecimal digits.
    pub fingerprint: String,
    /// Hexadecimal.
    pub serial: String,
    pub from: OffsetDateTime,
    pub until: OffsetDateTime,
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = |date: OffsetDateTime| date.format(&Rfc3339).map_err(|_| fmt::Error);
        let (from, until) = (date(self.from)?, date(self.until)?);
        write!(f, "{} {} {} {from} {until}", self.tenant, self.fingerprint, self.serial)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Certificate {
    /// `None`: the certificate is not a tenant's.
    pub(crate) fn of(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let date = |time: i64| OffsetDateTime::from_unix_timestamp(time).ok();
        Some(Certificate {
            tenant: tenant_of(der)?,
            fingerprint: hex(&fingerprint_of(der)),
            serial: hex(parsed.raw_serial()),
            from: date(parsed.validity().not_before.timestamp())?,
            until: date(parsed.validity().not_after.timestamp())?,
        })
    }

    pub(crate) fn read(path: &Path) -> Result<Self, IdentityError> {
        let found = certificates(path)?.first().and_then(Self::of);
        found.ok_or_else(|| IndexError::NoTenant(path.to_owned()).into())
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let mut word = || words.next();
        let (tenant, fingerprint, serial) = (word()?.to_owned(), word()?.to_owned(), word()?.to_owned());
        let digits = fingerprint.len() == 64 && fingerprint.bytes().all(|b| b.is_ascii_hexdigit());
        let date = |word: &str| OffsetDateTime::parse(word, &Rfc3339).ok();
        let (from, until) = (date(word()?)?, date(word()?)?);
        (digits && word().is_none()).then_some(Certificate { tenant, fingerprint, serial, from, until })
    }
}

/// All issued certificates that are known.
pub(crate) struct Index {
    path: PathBuf,
    pub certificates: Vec<Certificate>,
    /// There was no index: the number of certificates that were found in the folder. Others may have been issued.
    pub adopted: Option<usize>,
}

impl Index {
    pub fn open(directory: &Path) -> Result<Self, IdentityError> {
        let path = directory.join(INDEX);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
                let parsed = lines.map(|(at, line)| {
                    Certificate::parse(line).ok_or_else(|| IndexError::Line(path.clone(), at + 1).into())
                });
                let certificates = parsed.collect::<Result<_, IdentityError>>()?;
                Ok(Index { path, certificates, adopted: None })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::adopt(directory, path),
            Err(error) => Err(IdentityError::File(path, error)),
        }
    }

    /// Makes the index of a new folder, or of one from an older version.
    fn adopt(directory: &Path, path: PathBuf) -> Result<Self, IdentityError> {
        let mut index = Index { path, certificates: Vec::new(), adopted: None };
        let old = node_folder(directory).join("node.pem").exists();
        append_private(&index.path, HEADING)?;
        for folder in fs::read_dir(directory).map_err(|e| IdentityError::File(directory.into(), e))?.flatten() {
            let file = folder.path().join("tenant.pem");
            if folder.file_name().to_string_lossy().starts_with("tenant-") && file.exists() {
                index.add(Certificate::read(&file)?)?;
            }
        }
        index.adopted = old.then_some(index.certificates.len());
        Ok(index)
    }

    /// On disk before the certificate is anywhere: none is issued that the index does not know.
    pub fn add(&mut self, certificate: Certificate) -> Result<(), IdentityError> {
        append_private(&self.path, &format!("{certificate}\n"))?;
        self.certificates.push(certificate);
        Ok(())
    }
}

/// True if a certificate lets its tenant in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Valid,
    Expired,
    Revoked,
}

/// The issued certificates and tokens.
#[derive(Debug)]
pub struct Listing {
    pub certificates: Vec<(Certificate, Standing)>,
    /// Tenants with a token, once for each.
    pub tokens: Vec<String>,
    /// There was no index: so many certificates were found in the folder.
    pub adopted: Option<usize>,
}

/// Certificates and tokens that the CA of this folder has issued to tenants, as it stands at `now`.
pub fn list(directory: &Path, now: OffsetDateTime) -> Result<Listing, IdentityError> {
    let node = node_folder(directory);
    if !node.join("node.pem").exists() {
        return Err(IdentityError::NoNode(directory.to_owned()));
    }
    let index = Index::open(directory)?;
    let revoked = revoked_fingerprints(&node)?;
    let standing = |certificate: &Certificate| match () {
        () if revoked.contains(&certificate.fingerprint) => Standing::Revoked,
        () if certificate.until < now => Standing::Expired,
        () => Standing::Valid,
    };
    let certificates = index.certificates.into_iter().map(|certificate| {
        let standing = standing(&certificate);
        (certificate, standing)
    });
    Ok(Listing { certificates: certificates.collect(), tokens: token_holders(&node)?, adopted: index.adopted })
}
